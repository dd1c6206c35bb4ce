"""The one seam between the handlers and a model: what they need of it, whether it runs here or elsewhere.

A handler says what is to be done by a `Job`, or by a function of an LLM that can be pickled with what it is given. It
never holds an LLM itself. `local.py` has the backend of this process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..arrays import Floats
from ..cache.stats import PrefixDivergence
from ..errors import RequestError
from ..ops.sampling import SamplingParams
from .text_work import TextWork

if TYPE_CHECKING:
    from .jobs import Job, RunEvent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asker:
    """Whose text is worked on: clients share the threads for it.

    Args:
        text: Those threads, of this process.
        client: Who asks.
        nbytes: Size of the request's body.
    """

    text: TextWork
    client: str = ""
    nbytes: int = 0

    async def in_thread(self, call: Callable[..., T], *given: Any) -> T:
        return await self.text.run(self.client, self.nbytes, partial(call, *given))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What stays the same while a model is loaded.

    Args:
        ctx: Tokens of the context.
        max_length: Tokens of the longest sequence.
        max_seqs: Outputs that run at a time, in all replicas.
        sampling: Defaults of the sampling options.
        path: Where the file is, if it is on this machine.
        chat_template: That of plain conversations, or None.
        can_infill: Whether it has tokens for filling in the middle.
        sees_images: Whether messages may have images.
    """

    ctx: int
    max_length: int
    max_seqs: int
    sampling: SamplingParams
    path: Path | None = None
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    vocab_size: int = 0
    can_infill: bool = False
    sees_images: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """What an engine and its cache have done since the model was loaded, and what they hold now."""

    active: int = 0  # outputs in the batch
    waiting: int = 0
    queued_tokens: int = 0  # of the prompts and outputs of its jobs, at most, that are still to come
    steps: int = 0
    tokens: int = 0  # of outputs
    prompt_tokens: int = 0  # run, not found in the cache
    draft_tokens: int = 0  # guessed and verified
    accepted_tokens: int = 0  # of them, those that were right
    preemptions: int = 0
    images_encoded: int = 0
    images_reused: int = 0  # encoded before, and kept
    pages_total: int = 0
    pages_used: int = 0
    pages_shared: int = 0
    pages_cached: int = 0
    pages_free: int = 0
    lookups: int = 0
    hits: int = 0
    disk_written: int = 0
    disk_dropped: int = 0
    disk_failed: int = 0
    divergence: PrefixDivergence = field(default_factory=PrefixDivergence)

    @property
    def hit_rate(self) -> float:
        return self.hits / self.lookups if self.lookups else 0.0

    def __add__(self, other: Counts) -> Counts:
        """The counts of two replicas.

        >>> (Counts(steps=1, hits=1) + Counts(steps=2)).steps
        3
        """
        counts = {
            one.name: getattr(self, one.name) + getattr(other, one.name)
            for one in fields(self)
            if one.name != "divergence"
        }
        mine, theirs = self.divergence, other.divergence
        both = tuple(a + b for a, b in zip(mine.counts, theirs.counts, strict=True))
        return Counts(**counts, divergence=PrefixDivergence(both, mine.tokens + theirs.tokens))


class Backend(Protocol):
    """A model that answers jobs."""

    @property
    def facts(self) -> ModelFacts: ...

    def run(self, job: Job, asker: Asker) -> AsyncGenerator[RunEvent, None]:
        """The events of a job; see `jobs.run`. `aclose` ends it at once. `Interrupted`: it may be run again."""
        ...

    async def work(self, asker: Asker, call: Callable[..., T], *given: Any) -> T:
        """`call(llm, *given)`, made beside the event loop where the LLM is. All of it can be pickled."""
        ...

    async def embed(self, prompts: list[list[int]], pooling: str | None = None, adapter: str | None = None) -> Floats:
        """A row for each prompt: its vector, or the logits of its labels with the pooling "rank"."""
        ...

    @property
    def adapters(self) -> Mapping[str, str]:
        """Names of the adapters that jobs may use, and where each came from."""
        return {}

    async def load_adapter(self, name: str, path: str | None, replace: bool = False) -> None:
        """Let jobs use an adapter, which may `replace` one that has its name; None: the model without one."""
        raise RequestError("this model takes no adapters while it runs")

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Jobs that use it end with it."""
        raise RequestError("this model takes no adapters while it runs")

    async def counts(self) -> Mapping[str, Counts]:
        """The counts of each replica by its name; one that is the only one has none."""
        ...

    def close(self) -> None:
        """Release what it holds. Its jobs end with an error."""
        ...
