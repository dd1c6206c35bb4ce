"""LLM: a model that takes and gives text. It joins the tokenizer and the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Unpack, cast, overload

from ..engine.engine import Engine
from ..engine.worker import Worker
from ..errors import RequestError, TooLong
from ..files.hub import find, recommended_activations, recommended_sampling
from ..files.hub.names import model_name
from ..load_options import LoadOptions, takes_options, with_args
from ..loading import Loaded, load
from ..models import open_model
from ..ops.sampling import SamplingParams
from ..quantizing import quantized
from ..text.tokenizer import Tokenizer
from ..validation import refuse_pickle
from .chat import Chats
from .completion import Completion
from .embed import Embeds
from .fold import Output, agather, gather, in_thread
from .pooling import file_pooling
from .progress import Progress
from .sampling_options import (
    ChatOptions,
    Options,
    Prompt,
    PromptOptions,
    StreamOptions,
    model_sampling,
    read_options,
    split_prompts,
)
from .score import Scores
from .stream import AsyncStream, Stream

if TYPE_CHECKING:
    from .text_deltas import TextDelta

__all__ = ["LLM", "AsyncStream", "ChatOptions", "Options", "Prompt", "PromptOptions", "Stream"]

SHORT_PROMPT = 512  # characters or tokens: a thread takes longer than to make a request of it


class LLM(Chats, Embeds, Scores):
    """A language model loaded from a file and ready to generate.

        llm = LLM("model.gguf", kv="q8_0")
        print(llm.generate("Once upon a time", max_tokens=64))
        for text in llm.chat([{"role": "user", "content": "hi"}], stream=True):
            print(text, end="")

    All methods may be called from several threads at once: their requests run together, in batches. A prompt that
    begins like an earlier one is not computed again from the start, as long as it is in the KV cache. A model that does
    not fit into memory, the container's if there is one, is refused with what would fit.

    An LLM belongs to its process. It cannot be pickled, and a forked process must load the model again.
    """

    @takes_options(LoadOptions)
    def __init__(self, options: LoadOptions) -> None:
        path = find(options.model, progress=options.progress)
        file = open_model(path)
        if options.format is not None:
            file = quantized(file, options.format, options.keep, options.progress)
        metadata = file.tokenizer()
        tokenizer = Tokenizer.from_metadata(metadata)
        loaded = load(file, options, recommended_activations(metadata))
        sampling = model_sampling(metadata, recommended_sampling(metadata))
        self._join(loaded, tokenizer, model_name(path), path, sampling, options)
        self.pooling = file_pooling(file.config, loaded.is_encoder)

    @classmethod
    def from_parts(
        cls, loaded: Loaded, tokenizer: Tokenizer, name: str = "model", sampling: SamplingParams | None = None
    ) -> LLM:
        """An LLM of parts that are loaded already.

        Args:
            loaded: The executor, the cache and their sizes.
            tokenizer: The model's tokenizer.
            name: What `model_name` is.
            sampling: How outputs are sampled where options say nothing.
        """
        llm = cls.__new__(cls)
        llm._join(loaded, tokenizer, name, None, sampling or SamplingParams(), LoadOptions())
        return llm

    def _join(
        self,
        loaded: Loaded,
        tokenizer: Tokenizer,
        name: str,
        path: Path | None,
        sampling: SamplingParams,
        options: LoadOptions,
    ) -> None:
        self.model_name, self.path, self.sampling = name, path, sampling
        self.loaded, self.tokenizer = loaded, tokenizer.fitted(loaded.executor.vocab)
        self.ctx, self.pooling = loaded.ctx, file_pooling({}, loaded.is_encoder)
        self.engine = Engine(
            loaded.executor, loaded.cache, loaded.ctx, tokenizer.end_of_generation, max_seqs=loaded.max_seqs,
            encoder=loaded.is_encoder, max_waiting=options.max_waiting, max_per_client=options.max_per_client,
            maps=loaded.maps,
        )  # fmt: skip
        self._worker = Worker(self.engine)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self, prompt: Prompt, *, progress: Progress = False, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, progress: Progress = False, **options: Unpack[Options]
    ) -> list[Completion]: ...
    def generate(
        self, prompt: Prompt | Sequence[Prompt], *, progress: Progress = False, **options: Unpack[Options]
    ) -> Completion | list[Completion]:
        """Continue a prompt, or several prompts in one batch.

            answer = llm.generate("The capital of France is", max_tokens=16)
            drafts = llm.generate("A haiku:", n=3).outputs
            first, second = llm.generate(["One", "Two"])

        Text gets the special tokens around it that the model expects. A special token that is spelled in the text stays
        plain text, so that untrusted text cannot inject one; to use special tokens, `tokenize` with `parse_special`.

        Args:
            prompt: Text or token ids, or a list of such prompts.
            progress: Show the progress of a batch on standard error, or call a function with (done, total).
            options: See `Options`.

        Returns:
            A `Completion`, or for a list of prompts a list of the same length. With `n` > 1 each of them is the first
            of its prompt's `outputs`.
        """
        groups, several = self._groups(prompt, options)
        completions = gather(self._worker, groups, progress)
        return completions if several else completions[0]

    @overload
    async def agenerate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, *, progress: Progress = False, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    async def agenerate(
        self, prompt: Sequence[Prompt], *, progress: Progress = False, **options: Unpack[Options]
    ) -> list[Completion]: ...
    async def agenerate(
        self, prompt: Prompt | Sequence[Prompt], *, progress: Progress = False, **options: Unpack[Options]
    ) -> Completion | list[Completion]:
        """`generate` that does not block the event loop: long text is tokenized in a thread."""
        groups, several = await in_thread(lambda: self._groups(prompt, options))
        completions = await agather(self._worker, groups, progress)
        return completions if several else completions[0]

    def stream(self, prompt: Prompt, **options: Unpack[StreamOptions]) -> Stream:
        """Continue one prompt, part by part.

            for text in llm.stream("Once upon a time"):
                print(text, end="", flush=True)

        Args:
            prompt: Text or token ids.
            options: See `Options`, all but `n`.

        Returns:
            An iterator of text, whose `completion` holds the whole output at its end.
        """
        return Stream(self._worker, self._single(prompt, options))

    def astream(self, prompt: Prompt, **options: Unpack[StreamOptions]) -> AsyncStream:
        """`stream` for `async for`. It begins, and refuses what it cannot do, when its first part is requested."""
        self._check_single(prompt, options)
        return AsyncStream(self._worker, lambda: self._single(prompt, options))

    async def aparts(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]
    ) -> AsyncGenerator[TextDelta, None]:
        """Several outputs at once, part by part: each `TextDelta` is of one of the outputs, with its tokens.

            async with aclosing(await llm.aparts(["Once", "Twice"], n=2)) as parts:
                async for part in parts:
                    print(part.index, part.text)

        What it cannot do is refused at once; it begins when its first part is requested.

        Args:
            prompt: Text or token ids, or a list of such prompts.
            options: See `Options`. The `n` outputs of a prompt follow each other in `TextDelta.index`.
        """
        from .text_deltas import parts  # only callers in an event loop pay for it

        if sum(map(len, split_prompts(prompt)[0])) <= SHORT_PROMPT:
            return parts(self._worker, self._groups(prompt, options)[0])
        return parts(self._worker, await in_thread(lambda: self._groups(prompt, options)[0]))

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The token ids that `generate` makes of a prompt. Text that cannot fit is refused before it is tokenized."""
        return list(self._encode(prompt))

    def tokenize(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """The token ids of a text.

        Args:
            text: The text.
            add_special: Add the special tokens around it that the model expects.
            parse_special: Special tokens that are spelled in the text count as such. Not for untrusted text.
        """
        return self.tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return self.tokenizer.decode(ids)

    def close(self) -> None:
        """Stop. Outputs that are not complete end with an error; long prompts are written to `cache_dir`, if given."""
        self._worker.close()
        self.loaded.cache.flush()

    def flush(self) -> None:
        """Write long prompts to `cache_dir` now, between two steps, and wait until they are there."""
        self._worker.call(lambda engine: engine.cache.flush())

    def __reduce__(self) -> NoReturn:
        refuse_pickle("an LLM", "its threads and memory belong to this process; load the model in each process")

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
        """The outputs of each prompt, and whether several prompts could have been given."""
        settings = read_options(options, self.sampling)
        prompts, several = split_prompts(prompt)
        eos_ids = {*self.engine.eos_ids, *settings.stop_token_ids} if settings.stop_token_ids else None
        groups = []
        for number, text in enumerate(prompts):
            requests = self.engine.generation(
                self._encode(text), settings.params, n=settings.n, eos_ids=eos_ids, **settings.of_prompt(number)
            )
            make = partial(Output, self.tokenizer, stops=settings.stop, prompt_only=settings.prompt_only)
            groups.append([make(one, prompt_index=number, index=i) for i, one in enumerate(requests)])
        return groups, several

    def _single(self, prompt: Prompt, options: StreamOptions) -> Output:
        self._check_single(prompt, options)
        return self._groups(prompt, cast(Options, options))[0][0][0]

    def _check_single(self, prompt: Prompt, options: StreamOptions) -> None:
        n = read_options(cast(Options, options), self.sampling).n
        if n != 1:
            raise RequestError(f"a stream gives one output: n must be 1, got {n}; use generate")
        if split_prompts(prompt)[1]:
            raise RequestError("a stream takes one prompt, got a list of them; use generate")

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
                "give less text, or a larger ctx",
                least, most, is_exact=False,
            )  # fmt: skip


LLM.__doc__ = with_args(LLM.__doc__)
