"""`LLM.embed` and `LLM.aembed`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import overload

from ..arrays import Floats
from ..engine.engine import Engine
from ..engine.worker import Worker
from ..errors import RequestError, TooLong
from ..text.tokenizer import Tokenizer
from ..validation import to_flag
from .fold import arun, in_thread, run
from .pooling import Pooler, Pooling, check_pooling
from .progress import Progress
from .sampling_options import Prompt, split_prompts


class Embeds(ABC):
    """What an LLM has for embeddings."""

    engine: Engine
    pooling: str
    tokenizer: Tokenizer
    _worker: Worker

    @abstractmethod
    def _encode(self, prompt: str | Iterable[int]) -> Iterable[int]: ...

    @overload
    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        pooling: Pooling | None = None,
        normalize: bool = True,
        *,
        truncate: bool = False,
        progress: Progress = False,
    ) -> Floats: ...
    @overload
    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        pooling: str | None = None,
        normalize: bool = True,
        *,
        truncate: bool = False,
        progress: Progress = False,
    ) -> Floats | list[Floats]: ...
    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        pooling: str | None = None,
        normalize: bool = True,
        *,
        truncate: bool = False,
        progress: Progress = False,
    ) -> Floats | list[Floats]:
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
            truncate: Cut texts that are longer than the context, and keep the special tokens at their end. Otherwise
                they are refused.
            progress: Show the progress of a batch on standard error, or call a function with (done, total).
        """
        pooler = self._pooler(texts, pooling, normalize, truncate)
        run(self._worker, pooler.requests, pooler.take, progress)
        return pooler.result()

    @overload
    async def aembed(
        self,
        texts: Prompt | Sequence[Prompt],
        pooling: Pooling | None = None,
        normalize: bool = True,
        *,
        truncate: bool = False,
        progress: Progress = False,
    ) -> Floats: ...
    @overload
    async def aembed(
        self,
        texts: Prompt | Sequence[Prompt],
        pooling: str | None = None,
        normalize: bool = True,
        *,
        truncate: bool = False,
        progress: Progress = False,
    ) -> Floats | list[Floats]: ...
    async def aembed(
        self,
        texts: Prompt | Sequence[Prompt],
        pooling: str | None = None,
        normalize: bool = True,
        *,
        truncate: bool = False,
        progress: Progress = False,
    ) -> Floats | list[Floats]:
        """`embed` that does not block the event loop."""
        pooler = await in_thread(lambda: self._pooler(texts, pooling, normalize, truncate))
        await arun(self._worker, pooler.requests, pooler.take, progress)
        return pooler.result()

    def truncated_prompt(self, prompt: Prompt, length: int | None = None) -> list[int]:
        """At most `length` token ids of a prompt; the special tokens at its end stay.

        Args:
            prompt: Text or token ids.
            length: Number of tokens. Defaults to the longest sequence that fits.
        """
        ids = self.tokenizer.encode(prompt, add_special=True) if isinstance(prompt, str) else list(prompt)
        return self.tokenizer.truncate(ids, self.engine.max_length if length is None else length)

    def encode_text(self, text: Prompt, name: str = "the text", truncate: bool = False) -> list[int]:
        """The token ids that `embed` makes of a text.

        Args:
            text: Text or token ids.
            name: What errors call the text.
            truncate: Cut a text that is longer than the context.
        """
        most = self.engine.max_length
        try:
            tokens = self.truncated_prompt(text) if truncate else list(self._encode(text))
        except TooLong as error:
            raise TooLong(f"{name} does not fit: {error}, or truncate=True") from None
        if len(tokens) > most:
            raise TooLong(f"{name} has {len(tokens)} tokens, and {most} fit; truncate=True cuts it")
        if not tokens:
            raise RequestError(f"{name} is empty: it has no tokens, and the model adds none")
        return tokens

    def _pooler(self, texts: Prompt | Sequence[Prompt], pooling: str | None, normalize: bool, truncate: bool) -> Pooler:
        kind, is_cut = check_pooling(pooling, self.pooling), to_flag(truncate, "truncate")
        if isinstance(texts, list | tuple) and not texts:
            raise RequestError("texts must not be empty")
        prompts, several = split_prompts(texts)
        names = [f"text {number}" if several else "the text" for number in range(len(prompts))]
        encoded = [self.encode_text(*one, is_cut) for one in zip(prompts, names, strict=True)]
        return Pooler(self.engine, encoded, kind, normalize, several)
