"""A job: an input file, the journal of what is done, and the output."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ...errors import PathError
from .journal import Journal, Totals
from .lines import InputLine, Record, read_lines, scan


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """What became of a job.

    Args:
        output: The output file.
        lines: Lines of the input.
        completed: Those with an answer.
        failed: Those with an error.
        resumed: Those that were done before this run.
        prompt_tokens: Tokens of all prompts.
        completion_tokens: Tokens of all outputs.
        seconds: Time of this run.
    """

    output: str
    lines: int
    completed: int
    failed: int
    resumed: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float

    def facts(self) -> dict[str, Any]:
        return asdict(self)


class BatchJob:
    """Lines that are still to be done, and a place for their answers. Use it in a `with` block.

    What is done is kept in OUTPUT.partial: the same job goes on there if its process was killed. `finish` writes the
    output, in the order of the input.

    Args:
        source: A file with a request on each line.
        output: The file to write.
        facts: What the answers depend on, such as the model. A checkpoint with other facts is refused.
        force: Replace an output that is there.
    """

    def __init__(self, source: Path, output: Path, facts: dict[str, str], force: bool = False) -> None:
        partial = output.with_name(f"{output.name}.partial")
        if output.exists() and not partial.exists() and not force:
            raise PathError(f"{output} is there already; remove it, or use --force")
        try:
            if output.exists() and output.samefile(source):
                raise PathError(f"{output} is the input; choose another file for the output")
            self._stat = os.stat(source)
            self._scan = scan(source)
            self.journal = Journal(partial, {"input": self._scan.digest, "created": int(self._stat.st_mtime), **facts})
        except OSError as error:
            if isinstance(error, PathError):
                raise
            raise PathError(f"{error.filename or source}: {error.strerror or error}") from None
        self.source, self.output, self._begun = source, output, time.perf_counter()
        self.repeated, self.num_lines, self.resumed = self._scan.repeated, self._scan.num_lines, len(self.journal)

    def __enter__(self) -> BatchJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.journal.close()

    @property
    def created(self) -> int:
        """The time that answers bear: that of the input, so that a job that is done again gives the same bytes."""
        return self.journal.created

    @property
    def num_done(self) -> int:
        return len(self.journal)

    @property
    def totals(self) -> Totals:
        return self.journal.totals

    def remaining(self) -> Iterator[InputLine]:
        """The lines that are not done."""
        with self.source.open("rb") as file:
            for line in read_lines(file):
                if line.index not in self.journal:
                    yield line

    def add(self, record: Record) -> bool:
        """Keep an answer, unless the line has one."""
        return self.journal.add(record)

    def finish(self) -> BatchSummary:
        """Write the output, and remove the journal."""
        now = os.stat(self.source)
        if (now.st_size, now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            raise PathError(f"{self.source} changed while it was read; remove {self.journal.path} and begin anew")
        missing = self.num_lines - self.num_done
        if missing:
            raise PathError(f"{missing} lines of {self.source} have no answer yet; run the same command again")
        self.journal.write(self.output, self.num_lines)
        self.journal.remove()
        return BatchSummary(
            str(self.output), self.num_lines, self.totals.completed, self.totals.failed, self.resumed,
            self.totals.prompt_tokens, self.totals.completion_tokens, time.perf_counter() - self._begun,
        )  # fmt: skip


def file_stamp(path: Path) -> str:
    """A text that changes with a model's file."""
    stat = path.stat()
    return f"{path.name} {stat.st_size} {stat.st_mtime_ns}"
