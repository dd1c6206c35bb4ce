"""LLM: a model that takes and gives text. It joins the tokenizer and the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
import numpy.typing as npt

from .answers import Answer, AsyncStream, Stream, agather, gather, score
from .completion import Completion, TokenLogprob
from .engine.contract import Runner
from .engine.engine import Engine
from .engine.runner import KvFormats, load
from .engine.worker import Worker
from .errors import RequestError
from .files.gguf import read_gguf
from .files.hub import find
from .ops import cpu
from .ops.arguments import chosen_activations
from .options import Message, OneAnswer, Options, Prompt, check_messages, check_tools, read_options, split_prompts
from .text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .text.template import ChatTemplate

__all__ = ["LLM", "AsyncStream", "Completion", "Options", "Stream", "TokenLogprob"]

Messages = Sequence[Message]
Tools = Sequence[Mapping[str, Any]] | None


class LLM:
    """A language model, ready to write.

        llm = LLM("model.gguf", kv="q8_0")
        print(llm.generate("Once upon a time", max_tokens=64))
        for piece in llm.chat([{"role": "user", "content": "hi"}], stream=True):
            print(piece, end="")

    `model` is a path, a URL, `hf:org/repo` or a built-in name. `kv` is the format of the KV cache, or a pair of formats
    for K and V; `ctx` the longest text in tokens; `threads` says how many to use. `activations` says how
    exactly weights are multiplied: "int8", which is usual; "int16", 25 times as near to the truth and a tenth or two
    slower for one answer; or "exact", slowest (`exact=True` is the same). See `fewbit.linear`; logits have 16 bits at
    least.
    `repack` lays the weights out anew, as this machine multiplies them fastest for up to 16 answers at once (see
    `fewbit.repack`); if not given, where that gains and memory is large enough. False keeps them in the file's memory
    map, which other processes share.
    `progress(what, bytes done, bytes in all or None)` is called while a model is fetched.

    All methods may be called from several threads at once: their requests run together, in steps. A prompt that begins
    like one before is not run again from the start, as long as the cache remembers it.

    The options of `generate`, `stream` and `chat`: `max_tokens` (256; None: until the context is full), `stop` (a
    string or several: the answer ends before the first of them), `n` (answers to each prompt), `seed` (the same one
    gives the same answer), `logprobs` (k: tell how likely each token was, and the k likeliest), and those of `Rule`:
    `temperature`, `top_k`, `top_p`, `min_p`, `repetition`, `presence`, `frequency`.
    """

    model_name: str
    path: Path | None
    runner: Runner
    tokenizer: Tokenizer
    threads: int
    ctx: int

    def __init__(
        self,
        model: str | PathLike[str] = "smollm2",
        device: str = "cpu",
        kv: KvFormats = "f16",
        ctx: int | None = None,
        exact: bool = False,
        threads: int | None = None,
        *,
        activations: str | None = None,
        repack: bool | None = None,
        progress: Callable[[str, int, int | None], None] | None = None,
    ) -> None:
        path = find(model, progress=progress)
        gguf = read_gguf(path)
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
        how = chosen_activations(activations, exact)
        runner = load(gguf, device=device, kv=kv, ctx=ctx, activations=how, threads=threads, repack=repack)
        self._join(runner, tokenizer, path.stem, path, threads)

    @classmethod
    def from_parts(cls, runner: Runner, tokenizer: Tokenizer, name: str = "model", threads: int | None = None) -> LLM:
        """An LLM of parts that are there already."""
        llm = cls.__new__(cls)
        llm._join(runner, tokenizer, name, None, threads)
        return llm

    def _join(self, runner: Runner, tokenizer: Tokenizer, name: str, path: Path | None, threads: int | None) -> None:
        self.model_name, self.path = name, path
        self.runner, self.tokenizer = runner, tokenizer
        self.threads = cpu.default_threads() if threads is None else threads
        self.ctx = runner.ctx
        self.engine = Engine(runner, tokenizer.end_of_generation, threads=self.threads)
        self._worker = Worker(self.engine)

    @overload
    def generate(self, prompt: Prompt, **options: Unpack[OneAnswer]) -> Completion: ...
    @overload
    def generate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]
    ) -> Completion | list[Completion]: ...
    def generate(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Completion | list[Completion]:
        """Continue a prompt: text, or token ids, or a list of such prompts.

        One prompt and `n` = 1 give a Completion, else there is a list of them, the `n` of each prompt together. Text
        gets the tokens around it that the model wants; a special token that is spelled in it stays plain text, so that
        text from somebody else cannot pretend to be more. To use special tokens, `tokenize` with `parse_special`.
        """
        groups, alone = self._groups(prompt, options)
        completions = gather(self._worker, groups)
        return completions[0] if alone else completions

    @overload
    async def agenerate(self, prompt: Prompt, **options: Unpack[OneAnswer]) -> Completion: ...
    @overload
    async def agenerate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]
    ) -> Completion | list[Completion]: ...
    async def agenerate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]
    ) -> Completion | list[Completion]:
        """`generate` that does not block the event loop."""
        groups, alone = self._groups(prompt, options)
        completions = await agather(self._worker, groups)
        return completions[0] if alone else completions

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """`generate` for one prompt, piece by piece: an iterator of text, with `completion` at its end."""
        return Stream(self._worker, self._single(prompt, options))

    def astream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """`stream` for `async for`."""
        return AsyncStream(self._worker, self._single(prompt, options))

    @overload
    def chat(
        self, messages: Messages, *, tools: Tools = None, stream: Literal[False] = False, **options: Unpack[OneAnswer]
    ) -> Completion: ...
    @overload
    def chat(
        self, messages: Messages, *, tools: Tools = None, stream: Literal[False] = False, **options: Unpack[Options]
    ) -> Completion | list[Completion]: ...
    @overload
    def chat(
        self, messages: Messages, *, tools: Tools = None, stream: Literal[True], **options: Unpack[Options]
    ) -> Stream: ...
    def chat(
        self, messages: Messages, *, tools: Tools = None, stream: bool = False, **options: Unpack[Options]
    ) -> Completion | list[Completion] | Stream:
        """Answer messages, dicts with `role` and `content`, by the model's chat template.

        In what the template makes of them special tokens count, also those that a message spells.
        """
        prompt = self._chat_prompt(messages, tools)
        return self.stream(prompt, **options) if stream else self.generate(prompt, **options)

    @overload
    async def achat(
        self, messages: Messages, *, tools: Tools = None, stream: Literal[False] = False, **options: Unpack[OneAnswer]
    ) -> Completion: ...
    @overload
    async def achat(
        self, messages: Messages, *, tools: Tools = None, stream: Literal[False] = False, **options: Unpack[Options]
    ) -> Completion | list[Completion]: ...
    @overload
    async def achat(
        self, messages: Messages, *, tools: Tools = None, stream: Literal[True], **options: Unpack[Options]
    ) -> AsyncStream: ...
    async def achat(
        self, messages: Messages, *, tools: Tools = None, stream: bool = False, **options: Unpack[Options]
    ) -> Completion | list[Completion] | AsyncStream:
        """`chat` that does not block the event loop."""
        prompt = self._chat_prompt(messages, tools)
        return self.astream(prompt, **options) if stream else await self.agenerate(prompt, **options)

    def score(self, tokens: Iterable[int]) -> npt.NDArray[np.float32]:
        """The log-probability of each token after the first."""
        return score(self._worker, self.engine.scoring(tokens))

    def tokenize(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """The token ids of a text; see `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return self.tokenizer.decode(ids)

    def close(self) -> None:
        """Stop. Answers that are not complete end with an error."""
        self._worker.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({self.model_name}, {self.ctx} tokens of context)"

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template of the model."""
        from .text.template import ChatTemplate

        return ChatTemplate.for_tokenizer(self.tokenizer)

    def _chat_prompt(self, messages: Messages, tools: Tools) -> list[int]:
        text = self.template.render(check_messages(messages), check_tools(tools))
        return self.tokenizer.encode(text, parse_special=True)  # the template writes BOS itself, if there is to be one

    def _groups(self, prompt: Prompt | Sequence[Prompt], options: Options) -> tuple[list[list[Answer]], bool]:
        """The answers to each prompt, and whether there is just one."""
        settings = read_options(options)
        prompts, several = split_prompts(prompt)
        groups = [
            [
                Answer(self.tokenizer, request, settings.stop)
                for request in self.engine.request(
                    self._encode(one),
                    settings.rule,
                    max_tokens=settings.max_tokens,
                    n=settings.n,
                    seed=settings.seed,
                    logprobs=settings.logprobs,
                )
            ]
            for one in prompts
        ]
        return groups, not several and settings.n == 1

    def _single(self, prompt: Prompt, options: Options) -> Answer:
        groups, alone = self._groups(prompt, options)
        if not alone:
            raise RequestError("a stream gives one answer to one prompt: no list of prompts, and n is 1")
        return groups[0][0]

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        return self.tokenizer.encode(prompt, add_special=True) if isinstance(prompt, str) else prompt
