"""LLM: a model that takes and gives text. It joins the tokenizer and the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
import numpy.typing as npt

from .completion import Completion, TokenLogprob
from .engine.engine import Engine
from .engine.worker import Worker
from .errors import RequestError
from .files.hub import find
from .files.model import open_model
from .loading import KvFormats, Loaded, load
from .options import Message, OneOutput, Options, Prompt, check_messages, check_tools, read_options, split_prompts
from .outputs import AsyncStream, Output, Stream, agather, gather, score
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
        for text in llm.chat([{"role": "user", "content": "hi"}], stream=True):
            print(text, end="")

    `model` is a path, a URL, `hf:org/repo` or a built-in name. `kv` is the format of the KV cache, or a pair of formats
    for K and V; `ctx` the longest text in tokens; `threads` says how many to use. `activations` says how
    exactly weights are multiplied: "int8", which is usual; "int16", 25 times as near to the truth and a tenth or two
    slower for one output; or "exact", slowest (`exact=True` is the same). See `fewbit.linear`; logits have 16 bits at
    least.
    `repack` lays the weights out anew, as this machine multiplies them fastest for up to 16 outputs at once (see
    `fewbit.repack`); if not given, where that gains and memory is large enough. False keeps them in the file's memory
    map, which other processes share.
    `progress(what, bytes done, bytes in all or None)` is called while a model is fetched.

    All methods may be called from several threads at once: their requests run together, in steps. A prompt that begins
    like one before is not run again from the start, as long as the cache remembers it.

    The options of `generate`, `stream` and `chat`: `max_tokens` (256; None: until the context is full), `min_tokens`,
    `stop` (a string or several: the output ends before the first of them), `stop_token_ids`, `n` (outputs of each
    prompt), `seed` (the same one gives the same output), `logprobs` (k: tell how likely each token was, and the k
    likeliest), `logit_bias` ({token: what is added to its logit}), `constraint` (what the output must look like),
    `namespace` (prompts share what was computed within one only), and those of `SamplingParams`: `temperature`,
    `top_k`, `top_p`, `min_p`, `repetition_penalty`, `presence_penalty`, `frequency_penalty`.
    """

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
        file = open_model(path)
        tokenizer = Tokenizer.from_metadata(file.tokenizer())
        loaded = load(
            file, device=device, kv=kv, ctx=ctx, exact=exact, activations=activations, threads=threads, repack=repack
        )
        self._join(loaded, tokenizer, path.stem, path)

    @classmethod
    def from_parts(cls, loaded: Loaded, tokenizer: Tokenizer, name: str = "model") -> LLM:
        """An LLM of parts that are there already."""
        llm = cls.__new__(cls)
        llm._join(loaded, tokenizer, name, None)
        return llm

    def _join(self, loaded: Loaded, tokenizer: Tokenizer, name: str, path: Path | None) -> None:
        self.model_name, self.path = name, path
        self.loaded, self.tokenizer = loaded, tokenizer
        self.ctx = loaded.ctx
        self.engine = Engine(loaded.executor, loaded.cache, loaded.ctx, tokenizer.end_of_generation)
        self._worker = Worker(self.engine)

    @overload
    def generate(self, prompt: Prompt, **options: Unpack[OneOutput]) -> Completion: ...
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
    async def agenerate(self, prompt: Prompt, **options: Unpack[OneOutput]) -> Completion: ...
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
        """`generate` for one prompt, part by part: an iterator of text, with `completion` at its end."""
        return Stream(self._worker, self._single(prompt, options))

    def astream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """`stream` for `async for`."""
        return AsyncStream(self._worker, self._single(prompt, options))

    @overload
    def chat(
        self, messages: Messages, *, tools: Tools = None, stream: Literal[False] = False, **options: Unpack[OneOutput]
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
        self, messages: Messages, *, tools: Tools = None, stream: Literal[False] = False, **options: Unpack[OneOutput]
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
        """Stop. Outputs that are not complete end with an error."""
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

    def _groups(self, prompt: Prompt | Sequence[Prompt], options: Options) -> tuple[list[list[Output]], bool]:
        """The outputs of each prompt, and whether there is just one."""
        settings = read_options(options)
        prompts, several = split_prompts(prompt)
        eos_ids = {*self.engine.eos_ids, *settings.stop_token_ids} if settings.stop_token_ids else None
        groups = [
            [
                Output(self.tokenizer, request, settings.stop)
                for request in self.engine.generation(
                    self._encode(one), settings.params, n=settings.n, eos_ids=eos_ids, **settings.request
                )
            ]
            for one in prompts
        ]
        return groups, not several and settings.n == 1

    def _single(self, prompt: Prompt, options: Options) -> Output:
        groups, alone = self._groups(prompt, options)
        if not alone:
            raise RequestError("a stream gives one output for one prompt: no list of prompts, and n is 1")
        return groups[0][0]

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        return self.tokenizer.encode(prompt, add_special=True) if isinstance(prompt, str) else prompt
