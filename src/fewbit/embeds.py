"""`LLM.embed` and `LLM.aembed`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import overload

from .arrays import Floats
from .embedding import Pooler, Pooling, check_pooling
from .engine.engine import Engine
from .engine.worker import Worker
from .errors import RequestError
from .options import Prompt, split_prompts
from .outputs import arun, in_thread, run


class Embeds(ABC):
    """What an LLM has for embeddings."""

    engine: Engine
    pooling: str
    _worker: Worker

    @abstractmethod
    def _encode(self, prompt: str | Iterable[int]) -> Iterable[int]: ...

    @overload
    def embed(
        self, texts: Prompt | Sequence[Prompt], pooling: Pooling | None = None, normalize: bool = True
    ) -> Floats: ...
    @overload
    def embed(
        self, texts: Prompt | Sequence[Prompt], pooling: str | None = None, normalize: bool = True
    ) -> Floats | list[Floats]: ...
    def embed(
        self, texts: Prompt | Sequence[Prompt], pooling: str | None = None, normalize: bool = True
    ) -> Floats | list[Floats]:
        """The meaning of a text as a vector; of several texts, as rows. Texts or token ids.

        `pooling` makes one vector of those of the tokens: "mean", "cls" (the first), "last", or "none", which gives
        them all, an array for each text. If not given it is the model's own, in `pooling`: what its file says, else the
        mean for encoders and the last token for others. `normalize` makes vectors of length 1, so that their products
        are cosines. Encoders are made for this, but any model can.
        """
        pooler = self._pooler(texts, pooling, normalize)
        run(self._worker, pooler.requests, pooler.take)
        return pooler.result()

    @overload
    async def aembed(
        self, texts: Prompt | Sequence[Prompt], pooling: Pooling | None = None, normalize: bool = True
    ) -> Floats: ...
    @overload
    async def aembed(
        self, texts: Prompt | Sequence[Prompt], pooling: str | None = None, normalize: bool = True
    ) -> Floats | list[Floats]: ...
    async def aembed(
        self, texts: Prompt | Sequence[Prompt], pooling: str | None = None, normalize: bool = True
    ) -> Floats | list[Floats]:
        """`embed` that does not block the event loop."""
        pooler = await in_thread(lambda: self._pooler(texts, pooling, normalize))
        await arun(self._worker, pooler.requests, pooler.take)
        return pooler.result()

    def _pooler(self, texts: Prompt | Sequence[Prompt], pooling: str | None, normalize: bool) -> Pooler:
        kind = check_pooling(pooling, self.pooling)
        if isinstance(texts, list | tuple) and not texts:
            raise RequestError("there are no texts to embed")
        ones, several = split_prompts(texts)
        return Pooler(self.engine, [self._encode(one) for one in ones], kind, normalize, several)
