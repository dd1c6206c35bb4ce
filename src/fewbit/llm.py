"""LLM: a model that takes and gives text. It joins the tokenizer and the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

import numpy as np
import numpy.typing as npt

from .chats import Chats
from .completion import Completion, TokenLogprob
from .embedding import file_pooling
from .embeds import Embeds
from .engine.engine import Engine
from .engine.worker import Worker
from .errors import RequestError, TooLong
from .files.hub import builtin, find
from .files.hub.names import model_name
from .loading import KvFormats, Loaded, load
from .models import open_model
from .ops.sampling import SamplingParams
from .options import (
    OneOutput,
    Options,
    Prompt,
    model_sampling,
    read_options,
    split_prompts,
)
from .outputs import AsyncStream, Output, Stream, agather, gather, in_thread, run
from .quantizing import quantized
from .text.tokenizer import Tokenizer
from .validation import to_flag

if TYPE_CHECKING:
    from .parts import Part

__all__ = ["LLM", "AsyncStream", "Completion", "Options", "Stream", "TokenLogprob"]


class LLM(Chats, Embeds):
    """A language model, ready to write.

        llm = LLM("model.gguf", kv="q8_0")
        print(llm.generate("Once upon a time", max_tokens=64))
        for text in llm.chat([{"role": "user", "content": "hi"}], stream=True):
            print(text, end="")

    `model` is a path (a GGUF file, or a folder with config.json and safetensors), a URL, `hf:org/repo` or a built-in
    name. `kv` is the format of the KV cache, or of K and of
    V, "q8_0/q4_0"; `ctx` the longest text in tokens: if not given 8192, or fewer if the model was made for fewer or,
    with a warning, memory is short; `threads` says how many to use. `activations` says how exactly weights are
    multiplied: "int8", which is usual; "int16", 25 times as near to the truth and a tenth or two slower for one
    output; or "exact", slowest (`exact=True` is the same). See `fewbit.linear`; logits have 16 bits at least.
    `repack` lays the weights out anew, as this machine multiplies them fastest for up to 16 outputs at once (see
    `fewbit.repack`); if not given, where that gains and memory is large enough. False keeps them in the file's memory
    map, which other processes share.
    `cache_bytes` is the size of the KV cache; a step runs up to `max_seqs` outputs (64) and `max_batched_tokens` tokens
    (512). What does not fit into memory, the container's if there is one, is refused with what would fit.
    `batch_invariant=True` makes one numeric path of all batch sizes, so that the same seed gives the same output alone
    and beside any others; it costs speed where many tokens run at once. Without it, kernels change with the number of
    rows, and a last bit may turn an output elsewhere.
    `gpu_layers` says how many of the layers, the last ones, run on the GPU of `device="cuda"`, and the others on the
    CPU; if not given all of them, or with a warning as many as fit into its memory.
    `format` is what weights in f32, f16 or bf16 are quantized to when they are loaded: "q8_0", "q4_k" and the like for
    all matrices, or a mix like "q4_k_m". The result is kept as a GGUF file in the cache folder, and the next start is
    quick; with `keep=False` it is not.
    `max_waiting` requests may wait while others run, and a client may have `max_per_client` in all: more are refused
    with QueueFull. Without these there is no limit.
    `cache_dir` is a folder where long prompts are kept that the KV cache has no room for, and all of them at `close`:
    they are found again later, also after a restart. `cache_dir_bytes` is its size, 8 GiB unless given; those used
    longest ago go first. The files hold what was said in another form: keep the folder as private as the prompts.
    `progress(what, bytes done, bytes in all or None)` is called while a model is fetched or quantized.

    All methods may be called from several threads at once: their requests run together, in steps. A prompt that begins
    like one before is not run again from the start, as long as the cache remembers it.

    The options of `generate`, `stream` and `chat`: `max_tokens` (256; None: until the context is full; 0: the prompt is
    run and kept in the cache, nothing is written), `min_tokens`, `stop` (a string or several: the output ends before
    the first of them), `stop_token_ids`, `n` (outputs of each prompt), `seed` (output i of a call has the seed
    `seed + i`), `logprobs` (k: tell how likely each token was, and the k likeliest), `logit_bias` ({token: what is
    added to its logit}), `constraint` (what the output must look like), `namespace` (prompts share what was computed
    within one only), `priority` (0; higher ones are run first), `client` (a name: clients that wait for each other get
    the same number of tokens), `deadline` (seconds: what is not complete by then ends with the reason "deadline"), and
    those of `SamplingParams`: `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`,
    `presence_penalty`, `frequency_penalty`. Those that are not given are the model's own, in `sampling`: what its file
    or its makers recommend, else what is usual.
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
        cache_bytes: int | None = None,
        max_seqs: int | None = None,
        max_batched_tokens: int | None = None,
        batch_invariant: bool = False,
        gpu_layers: int | None = None,
        format: str | None = None,
        keep: bool = True,
        max_waiting: int | None = None,
        max_per_client: int | None = None,
        cache_dir: str | PathLike[str] | None = None,
        cache_dir_bytes: int | None = None,
        progress: Callable[[str, int, int | None], None] | None = None,
    ) -> None:
        path = find(model, progress=progress)
        file = open_model(path)
        if format is not None:
            file = quantized(file, format, to_flag(keep, "keep"), progress)
        words = file.tokenizer()
        tokenizer = Tokenizer.from_metadata(words)
        loaded = load(
            file, device=device, kv=kv, ctx=ctx, exact=exact, activations=activations, threads=threads, repack=repack,
            cache_bytes=cache_bytes, max_seqs=max_seqs, max_batched_tokens=max_batched_tokens,
            batch_invariant=batch_invariant, gpu_layers=gpu_layers, cache_dir=cache_dir,
            cache_dir_bytes=cache_dir_bytes, progress=progress,
        )  # fmt: skip
        limits = max_waiting, max_per_client
        self._join(loaded, tokenizer, model_name(path), path, model_sampling(words, _recommended(path)), *limits)
        self.pooling = file_pooling(file.config, loaded.is_encoder)

    @classmethod
    def from_parts(
        cls, loaded: Loaded, tokenizer: Tokenizer, name: str = "model", sampling: SamplingParams | None = None
    ) -> LLM:
        """An LLM of parts that are there already. `sampling` says how it is sampled if nobody says."""
        llm = cls.__new__(cls)
        llm._join(loaded, tokenizer, name, None, sampling or SamplingParams())
        return llm

    def _join(
        self,
        loaded: Loaded,
        tokenizer: Tokenizer,
        name: str,
        path: Path | None,
        sampling: SamplingParams,
        max_waiting: int | None = None,
        max_per_client: int | None = None,
    ) -> None:
        self.model_name, self.path, self.sampling = name, path, sampling
        self.loaded, self.tokenizer = loaded, tokenizer.fitted(loaded.executor.vocab)
        self.ctx, self.pooling = loaded.ctx, file_pooling({}, loaded.is_encoder)
        self.engine = Engine(
            loaded.executor, loaded.cache, loaded.ctx, tokenizer.end_of_generation, max_seqs=loaded.max_seqs,
            encoder=loaded.is_encoder, max_waiting=max_waiting, max_per_client=max_per_client, maps=loaded.maps,
        )  # fmt: skip
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
        """`generate` that does not block the event loop: long text is tokenized in a thread."""
        groups, alone = await in_thread(lambda: self._groups(prompt, options))
        completions = await agather(self._worker, groups)
        return completions[0] if alone else completions

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """`generate` for one prompt, part by part: an iterator of text, with `completion` at its end."""
        return Stream(self._worker, self._single(prompt, options))

    def astream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """`stream` for `async for`. It begins, and refuses what it cannot do, when its first part is asked for."""
        self._check_single(prompt, options)
        return AsyncStream(self._worker, lambda: self._single(prompt, options))

    async def aparts(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> AsyncGenerator[Part, None]:
        """`astream` for several prompts or outputs at once: parts with their tokens, each for one of the outputs.

            async with aclosing(await llm.aparts(["Once", "Twice"], n=2)) as parts:
                async for part in parts:
                    print(part.index, part.text)

        What it cannot do is refused at once; it begins when its first part is asked for.
        """
        from .parts import parts  # only callers in an event loop pay for it

        return parts(self._worker, await in_thread(lambda: self._groups(prompt, options)[0]))

    async def ascore(
        self, tokens: Sequence[int], logprobs: int | None = None, namespace: str = ""
    ) -> list[TokenLogprob]:
        """`score` of token ids that does not block the event loop, with the `logprobs` likeliest in each place."""
        from .parts import ascore

        request = self.engine.scoring(tokens, namespace=namespace, logprobs=logprobs)
        return await ascore(self._worker, self.tokenizer, request)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The token ids that `generate` makes of a prompt. Text that cannot fit is refused before it is tokenized."""
        return list(self._encode(prompt))

    def score(self, text: str | Iterable[int]) -> npt.NDArray[np.float32]:
        """The log-probability of each token after the first, of a text or of token ids.

        Text gets the tokens around it that the model wants, as in `generate`: after BOS its first token counts too.
        """
        request = self.engine.scoring(self._encode(text))
        run(self._worker, [request], lambda _: None)
        return request.scores

    def tokenize(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """The token ids of a text; see `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return self.tokenizer.decode(ids)

    def close(self) -> None:
        """Stop. Outputs that are not complete end with an error. Long prompts are written to `cache_dir`, if there is
        one."""
        self._worker.close()
        self.loaded.cache.flush()

    def flush(self) -> None:
        """Write long prompts to `cache_dir` now, between two steps, and wait until they are there."""
        self._worker.call(lambda engine: engine.cache.flush())

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> LLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_thread(self.close)  # it waits for the end of a step

    def __repr__(self) -> str:
        return f"LLM({self.model_name}, {self.ctx} tokens of context)"

    def _groups(self, prompt: Prompt | Sequence[Prompt], options: Options) -> tuple[list[list[Output]], bool]:
        """The outputs of each prompt, and whether there is just one."""
        settings = read_options(options, self.sampling)
        prompts, several = split_prompts(prompt)
        eos_ids = {*self.engine.eos_ids, *settings.stop_token_ids} if settings.stop_token_ids else None
        groups = [
            [
                Output(self.tokenizer, request, settings.stop, prompt_only=settings.prompt_only)
                for request in self.engine.generation(
                    self._encode(one), settings.params, n=settings.n, eos_ids=eos_ids, **settings.of_prompt(number)
                )
            ]
            for number, one in enumerate(prompts)
        ]
        return groups, not several and settings.n == 1

    def _single(self, prompt: Prompt, options: Options) -> Output:
        self._check_single(prompt, options)
        return self._groups(prompt, options)[0][0][0]

    def _check_single(self, prompt: Prompt, options: Options) -> None:
        if read_options(options, self.sampling).n != 1 or split_prompts(prompt)[1]:
            raise RequestError("a stream gives one output for one prompt: no list of prompts, and n is 1")

    def _encode(self, prompt: str | Iterable[int]) -> Iterable[int]:
        if not isinstance(prompt, str):
            return prompt
        self._refuse_long(prompt)
        return self.tokenizer.encode(prompt, add_special=True)

    def _refuse_long(self, text: str) -> None:
        """Refuse what cannot fit before it is tokenized, which takes a second for a million characters."""
        most = self.engine.max_length
        if len(text) > most and (least := self.tokenizer.min_tokens(text)) > most:
            raise TooLong(
                f"a text of {len(text)} characters is too long: it has at least {least} tokens, and {most} fit; "
                "give less text, or a larger ctx"
            )


def _recommended(path: Path) -> Mapping[str, float]:
    return next((model.sampling for model in builtin().values() if model.path == path), {})
