"""What a model does with text without writing any: tokens, scores, embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, NoReturn, Self, Unpack, overload

from ..arrays import Floats
from ..engine.adapters import Adapter
from ..engine.engine import Engine
from ..engine.speculation.speculation import Speculation
from ..engine.worker import Worker
from ..errors import RequestError
from ..load_options import LoadOptions
from ..loading import Loaded
from ..ops.sampling import SamplingParams
from ..text.tokenizer import Tokenizer
from ..validation import check_type, refuse_pickle, to_flag, to_size
from .adapters import AdapterMethods, check_adapters
from .callers import BlockingCaller, Caller, LoopCaller, drive, run
from .chat import ChatEncoder, Messages
from .extra_options import TokenTexts
from .images import ImagePrompts, images_of
from .pooling import Pooler, Pooling, check_pooling, file_pooling, with_prefix
from .progress import Progress
from .prompts import Prompt, PromptEncoder, Prompts, split_prompts
from .sampling_options import PromptOptions
from .scoring import ScoringMethods

if TYPE_CHECKING:
    from ..encoding import ImageEncoder
    from ..engine.embedded import EmbeddedPrompt
    from ..text.grammar import GrammarCompiler
    from ..text.reply import ReplyFormat
    from ..text.template import ChatTemplate


class TextReader(AdapterMethods, ScoringMethods):
    """A model that reads text: it joins a tokenizer, and an engine in a thread of its own.

    `prompts` are what its makers put before texts to embed, by name, and `default_prompt` before all of them.
    """

    prompts: Mapping[str, str]
    default_prompt: str | None

    def _join(
        self,
        loaded: Loaded,
        tokenizer: Tokenizer,
        name: str,
        path: Path | None,
        sampling: SamplingParams,
        options: LoadOptions,
        speculation: Speculation | None = None,
        encoder: ImageEncoder | None = None,
    ) -> None:
        self.model_name, self.path, self.sampling = name, path, sampling
        self.loaded, self.tokenizer = loaded, tokenizer.fitted(loaded.executor.vocab - loaded.second_text)
        self.ctx, self.pooling = loaded.ctx, file_pooling({}, loaded.is_encoder)
        self.engine = Engine(
            loaded.executor, loaded.cache, loaded.ctx, tokenizer.end_of_generation, max_seqs=loaded.max_seqs,
            encoder=loaded.is_encoder, max_waiting=options.max_waiting, max_per_client=options.max_per_client,
            maps=loaded.maps, speculation=speculation,
        )  # fmt: skip
        self.prompts, self.default_prompt = {}, None
        self._worker = Worker(self.engine)
        self._prompts = PromptEncoder(self.tokenizer, self.engine)
        self._token_texts = TokenTexts(self.tokenizer)
        self._images = ImagePrompts(encoder, self.tokenizer, self.engine.max_length, loaded.image_reach)
        self._chat = ChatEncoder(self._prompts, lambda: self.grammars, self._images)
        for adapter, source in check_adapters(options.adapters).items():
            self.load_adapter(adapter, source)

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

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The token ids that `generate` makes of a prompt. Text that cannot fit is refused before it is tokenized."""
        return self._prompts.encode(prompt)

    def encode_text(self, text: Prompt, name: str = "the text", truncate: bool = False) -> list[int]:
        """The token ids that `embed` makes of a text.

        Args:
            text: Text or token ids.
            name: What errors call the text.
            truncate: Cut a text that is longer than the context.
        """
        return self._prompts.encode_text(text, name, truncate)

    def truncated_prompt(self, prompt: Prompt, length: int | None = None) -> list[int]:
        """At most `length` token ids of a prompt; the special tokens at its end stay.

        Args:
            prompt: Text or token ids.
            length: Number of tokens. Defaults to the longest sequence that fits.
        """
        return self._prompts.truncated(prompt, self.engine.max_length if length is None else length)

    def chat_prompt(
        self, messages: Messages, *, refuse_ignored_tools: bool = False, **options: Unpack[PromptOptions]
    ) -> list[int]:
        """The token ids of the prompt that `chat` makes of messages.

        Args:
            messages: Dicts with `role` and `content`.
            refuse_ignored_tools: Raise an error, and not a warning, if the chat template ignores tools.
            options: See `PromptOptions`.
        """
        return self._chat.encode(messages, refuse_ignored_tools, options)

    def take_images(self, messages: Messages) -> Messages:
        """Messages whose images were opened and resized. That takes a while, and `chat_prompt` and `count_tokens` need
        not do it again.

        Args:
            messages: Dicts with `role` and `content`.
        """
        return self._images.take(messages)

    def embed_images(self, messages: Messages, tokens: Sequence[int]) -> EmbeddedPrompt | None:
        """The images of messages as a prompt has them, encoded; None if there are none.

        Args:
            messages: Of `take_images`.
            tokens: The prompt that `chat_prompt` made of them.
        """
        return self._images.embed(images_of(messages), tokens)

    @property
    def sees_images(self) -> bool:
        """Whether messages may have images."""
        return bool(self._images.placeholder)

    def count_tokens(
        self, messages: Messages, *, refuse_ignored_tools: bool = False, **options: Unpack[PromptOptions]
    ) -> int:
        """Number of tokens of the prompt that `chat` makes of messages, whether they fit into the context or not.

        Args:
            messages: Dicts with `role` and `content`.
            refuse_ignored_tools: Raise an error, and not a warning, if the chat template ignores tools.
            options: See `PromptOptions`.
        """
        return self._chat.count(messages, refuse_ignored_tools, options)

    def reply_format(self, has_tools: bool = False) -> ReplyFormat:
        """How the model writes reasoning and tool calls, by its chat template.

        Args:
            has_tools: The one for tools, if the model has a template of its own for them.
        """
        return self._chat.templates.format(has_tools)

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Makes constraints of grammars. What it compiled is kept for later calls."""
        from ..text.grammar import GrammarCompiler

        return GrammarCompiler(self.tokenizer, self.engine.eos_ids, self.engine.executor.vocab)

    @property
    def can_chat(self) -> bool:
        """Whether `chat` works: the file has a template, or the tokens of ChatML."""
        return self._chat.can_chat

    def control_tokens(self, format: ReplyFormat) -> dict[str, int]:
        """The control tokens that are part of a format of replies, with their ids."""
        return self._chat.control_tokens(format)

    @property
    def template(self) -> ChatTemplate:
        """The chat template of the model."""
        return self._chat.templates.template()

    def with_prompt(
        self, texts: Sequence[Prompt], prompt: str | None = None, prompt_name: str | None = None
    ) -> list[Prompt]:
        """Texts as `embed` reads them: with what is put before each.

        Args:
            texts: Text, or token ids, which nothing can be put before.
            prompt: As in `embed`.
            prompt_name: As in `embed`.
        """
        prefix = self._prefix(prompt, prompt_name)
        is_default = prompt is None and prompt_name is None
        return [*texts] if prefix is None else with_prefix(texts, prefix, is_default)

    def _prefix(self, prompt: str | None, name: str | None) -> str | None:
        """What is put before texts to embed."""
        if prompt is not None and name is not None:
            raise RequestError("prompt and prompt_name cannot be used together")
        check_type(prompt, (str, NoneType), "prompt")
        if prompt is not None or (name is None and self.default_prompt is None):
            return prompt
        if name is None:
            return self.default_prompt
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise RequestError(f"the model has no prompt {name!r}; there are: {known}")
        return self.prompts[name]

    @overload
    def embed(
        self, texts: Prompts, pooling: Pooling | None = None, normalize: bool = True,
        *, dimensions: int | None = None, prompt: str | None = None, prompt_name: str | None = None,
        truncate: bool = False, progress: Progress = False, adapter: Adapter = None,
    ) -> Floats: ...  # fmt: skip
    @overload
    def embed(
        self, texts: Prompts, pooling: str | None = None, normalize: bool = True,
        *, dimensions: int | None = None, prompt: str | None = None, prompt_name: str | None = None,
        truncate: bool = False, progress: Progress = False, adapter: Adapter = None,
    ) -> Floats | list[Floats]: ...  # fmt: skip
    def embed(
        self, texts: Prompts, pooling: str | None = None, normalize: bool = True,
        *, dimensions: int | None = None, prompt: str | None = None, prompt_name: str | None = None,
        truncate: bool = False, progress: Progress = False, adapter: Adapter = None,
    ) -> Floats | list[Floats]:  # fmt: skip
        """Embed a text as a vector, or several texts as the rows of a matrix.

            vectors = llm.embed(["a cat", "a kitten"])
            cosines = vectors @ vectors.T

        Encoders are made for this, but any model can. An empty text is embedded as the special tokens that the model
        puts around a text; it is refused where there are none.

        Args:
            texts: Text or token ids, or a list of such texts.
            pooling: "mean", "cls" (the first token), "last", or "none", which returns an array with a row for each
                token. Defaults to `LLM.pooling`: what the file says, else "mean" for encoders and "last" for others.
            normalize: Scale vectors to length 1, so that their products are cosines.
            dimensions: Keep the first numbers of each vector only, as models trained for it (Matryoshka) allow. They
                are of length 1 again if `normalize` says so.
            prompt: What is put before each text: an instruction, or a prefix such as "search_query: ".
            prompt_name: The same by its name in the model's `prompts`. Defaults to the one that the model's makers
                chose for all texts, if there is one; `prompt=""` is none.
            truncate: Cut texts that are longer than the context, and keep the special tokens at their end. Otherwise
                they are refused.
            progress: Show the progress of a batch on standard error, or call a function with (done, total).
            adapter: A loaded LoRA adapter, or several with weights.
        """
        return drive(
            self._embed(
                BlockingCaller(), texts, pooling, normalize, dimensions, prompt, prompt_name, truncate,
                progress, adapter,
            )
        )  # fmt: skip

    @overload
    async def aembed(
        self, texts: Prompts, pooling: Pooling | None = None, normalize: bool = True,
        *, dimensions: int | None = None, prompt: str | None = None, prompt_name: str | None = None,
        truncate: bool = False, progress: Progress = False, adapter: Adapter = None,
    ) -> Floats: ...  # fmt: skip
    @overload
    async def aembed(
        self, texts: Prompts, pooling: str | None = None, normalize: bool = True,
        *, dimensions: int | None = None, prompt: str | None = None, prompt_name: str | None = None,
        truncate: bool = False, progress: Progress = False, adapter: Adapter = None,
    ) -> Floats | list[Floats]: ...  # fmt: skip
    async def aembed(
        self, texts: Prompts, pooling: str | None = None, normalize: bool = True,
        *, dimensions: int | None = None, prompt: str | None = None, prompt_name: str | None = None,
        truncate: bool = False, progress: Progress = False, adapter: Adapter = None,
    ) -> Floats | list[Floats]:  # fmt: skip
        """`embed` that does not block the event loop."""
        return await self._embed(
            LoopCaller(), texts, pooling, normalize, dimensions, prompt, prompt_name, truncate, progress, adapter
        )

    def save_prompt(self, path: str | PathLike[str], prompt: Prompt) -> int:
        """Write what the KV cache holds of a prompt to a file: so many of its tokens. Without any there is no file.

        Args:
            path: The file. Keep it as private as the prompt.
            prompt: Text or token ids.
        """
        tokens, found = self.encode_prompt(prompt), [0]

        def save(engine: Engine) -> None:
            cache = engine.cache
            sequence = cache.new(tokens)
            try:
                found[0] = cache.length(sequence)
                if found[0]:
                    cache.save(sequence, path)
            finally:
                cache.free(sequence)

        self._worker.call(save)
        return found[0]

    def load_prompt(self, path: str | PathLike[str]) -> int:
        """Read a file of `save_prompt` into the KV cache: so many tokens that prompts need not compute again.

        Args:
            path: The file, of the same model and `kv`. Load only files that you trust.
        """
        found = [0]

        def load(engine: Engine) -> None:
            sequence = engine.cache.load(path)
            found[0] = engine.cache.length(sequence)
            engine.cache.free(sequence)

        self._worker.call(load)
        return found[0]

    def flush(self) -> None:
        """Write long prompts to `cache_dir` now, between two steps, and wait until they are there."""
        self._worker.call(lambda engine: engine.cache.flush())

    def close(self) -> None:
        """Stop. Outputs that are not complete end with an error; long prompts are written to `cache_dir`, if given."""
        self._worker.close()
        self.loaded.cache.flush()
        self.loaded.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickle("an LLM", "its threads and memory belong to this process; load the model in each process")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await LoopCaller().compute(self.close)  # it waits for the end of a step

    async def _embed(
        self, caller: Caller, texts: Prompts, pooling: str | None, normalize: bool, dimensions: int | None,
        prompt: str | None, prompt_name: str | None, truncate: bool, progress: Progress,
        adapter: Adapter,
    ) -> Floats | list[Floats]:  # fmt: skip
        kind, is_cut, is_scaled = (
            check_pooling(pooling, self.pooling),
            to_flag(truncate, "truncate"),
            to_flag(normalize, "normalize"),
        )
        if isinstance(texts, list | tuple) and not texts:
            raise RequestError("texts must not be empty")
        prompts, several = split_prompts(texts)
        prompts = self.with_prompt(prompts, prompt, prompt_name)
        most = None if dimensions is None else to_size(dimensions, "dimensions", 1, error=RequestError)

        def make() -> Pooler:
            names = [f"text {index}" if several else "the text" for index in range(len(prompts))]
            encoded = [self.encode_text(*pair, is_cut) for pair in zip(prompts, names, strict=True)]
            return Pooler(self.engine, encoded, kind, is_scaled, most, adapter)

        pooler = await caller.compute(make)
        await run(self._worker, pooler.requests, caller, pooler.take, progress)
        return pooler.result(several)
