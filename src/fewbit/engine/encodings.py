"""Requests that wait for an encoder: their images are encoded in slices between steps, before they are admitted.

Each distinct image is encoded once for all who wait for it, one image after the other. The rows of the latest ones are
kept, and images inside a prefix that the cache has need none. Work that nobody waits for any more is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..arrays import Floats
from .embedded import EncoderInput, Encoding
from .request import Request

KEPT_BYTES = 256 << 20  # of encoded images

Released = tuple[Request, Exception | None]  # a request that waits no longer, and the error that it ends with


@dataclass(slots=True)
class Job:
    """An input that is encoded, and the work if it has begun."""

    source: EncoderInput
    work: Encoding | None = None


class Encodings:
    """The requests that wait, in the order in which they came, and the jobs that they wait for.

    Args:
        kept_bytes: How much of what was encoded is kept for later requests.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._waiting: dict[Request, dict[bytes, list[EncoderInput]]] = {}  # with the inputs that each still needs
        self._jobs: OrderedDict[bytes, Job] = OrderedDict()
        self._kept: OrderedDict[bytes, Sequence[Floats]] = OrderedDict()  # the most recently used last
        self._kept_bytes, self._max_bytes = 0, kept_bytes
        self.num_encoded, self.num_reused = 0, 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter([*self._waiting])

    def add(self, request: Request, num_cached: int = 0) -> bool:
        """Let a request wait for its encodings. False if it needs none.

        Args:
            request: It begins to wait.
            num_cached: How many of its first tokens the cache has: images that end with them are not encoded.
        """
        if request.embedded is None:
            return False
        needed: dict[bytes, list[EncoderInput]] = {}
        pending = request.embedded.pending(num_cached)
        self.num_reused += len(request.embedded.pending()) - len(pending)
        for source in pending:
            if source.digest in self._kept:
                self._kept.move_to_end(source.digest)
                source.rows = self._kept[source.digest]
                self.num_reused += 1
            else:
                needed.setdefault(source.digest, []).append(source)
        for digest, sources in needed.items():
            self._jobs.setdefault(digest, Job(sources[0]))
        if needed:
            self._waiting[request] = needed
        return bool(needed)

    def run(self, seconds: float) -> list[Released]:
        """Go on with the first job for about so long. The requests that wait no longer."""
        if not self._jobs:
            return []
        digest, job = next(iter(self._jobs.items()))
        try:
            if job.work is None:
                job.work = job.source.begin()
            if not job.work.run(seconds):
                return []
            rows = job.work.rows()
        except Exception as error:
            del self._jobs[digest]
            return self._fail(digest, error)
        del self._jobs[digest]
        self.num_encoded += 1
        self._keep(digest, rows)
        return self._give(digest, rows)

    def drop_finished(self) -> None:
        """Forget requests that have ended, and the work that was for them alone."""
        self._waiting = {request: needed for request, needed in self._waiting.items() if not request.is_finished}
        wanted = {digest for needed in self._waiting.values() for digest in needed}
        for digest in self._jobs.keys() - wanted:
            del self._jobs[digest]

    def _fail(self, digest: bytes, error: Exception) -> list[Released]:
        failed = [request for request, needed in self._waiting.items() if digest in needed]
        for request in failed:
            del self._waiting[request]
        return [(request, error) for request in failed]

    def _give(self, digest: bytes, rows: Sequence[Floats]) -> list[Released]:
        for needed in self._waiting.values():
            for source in needed.pop(digest, []):
                source.rows = rows
        ready = [request for request, needed in self._waiting.items() if not needed]
        for request in ready:
            del self._waiting[request]
        return [(request, None) for request in ready]

    def _keep(self, digest: bytes, rows: Sequence[Floats]) -> None:
        self._kept[digest] = rows
        self._kept_bytes += sum(part.nbytes for part in rows)
        while self._kept_bytes > self._max_bytes and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= sum(part.nbytes for part in dropped)
