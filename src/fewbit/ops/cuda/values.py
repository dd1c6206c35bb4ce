"""What a step hands to its kernels: rows in the GPU's memory, the inputs of the step, the stream that they run on."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, NamedTuple

from .kernels import Entry
from .launch import LaunchList, StepPointer
from .session import Session

PIECE = 32  # launches that a recorded step sends at once


class Rows(NamedTuple):
    """f32 rows: the row of token t begins at pointer + 4 * stride * t."""

    pointer: int
    width: int
    stride: int

    @property
    def at(self) -> tuple[int, int]:
        """As kernels take them."""
        return self.pointer, self.stride

    def columns(self, first: int, width: int) -> Rows:
        return Rows(self.pointer + 4 * first, width, self.stride)


class GroupTables(NamedTuple):
    """Pages of an attention group, as in `cache.view.View`: pointers to int32."""

    tables: int
    starts: int  # of each sequence's pages in `tables`
    slots: int  # of each token: page * page_tokens + place in the page; -1: it is not kept


class RowRun(NamedTuple):
    """Sequences behind each other that all have one new token, or all several."""

    sequences: range
    rows: range

    @property
    def is_prompt(self) -> bool:
        return len(self.rows) > len(self.sequences)


class InsertedPart(NamedTuple):
    """Rows from outside that a step has for the operations `insert` of one part."""

    part: int
    rows: int
    first_token: int  # place among the tokens of all parts
    first_value: int  # place of the first row among the floats of all parts


@dataclass(frozen=True)
class StepInputs:
    """Where a step's integers lie, pointers to int32; and what the host knows of them, by which launches are sized.

    In a captured graph the numbers are those that it was captured for: rows beyond the real ones have length 0.
    """

    tokens: int  # of each row; -1 - i: the i-th token that the step before sampled, in `previous`
    previous: int
    positions: int  # of each row in its sequence
    sequences: int  # of each row
    q_starts: int  # rows of sequence s: q_starts[s] to q_starts[s + 1]
    lengths: int  # of each sequence, with the new tokens
    logits_indices: int  # rows whose logits are wanted
    reads: int  # slots of recurrent states
    writes: int
    groups: tuple[GroupTables, ...]
    num_tokens: int
    num_sequences: int
    num_logits: int
    max_q: int  # most new tokens of a sequence
    max_length: int  # of a sequence, about: captured graphs serve lengths up to it
    runs: tuple[RowRun, ...] = ()  # of a step of prompts and others, else none
    adapters: int = 0  # slots of the adapters of each row, in `mix` places; -1: none
    adapter_weights: int = 0  # f32
    mix: int = 0  # 0: no row has an adapter
    axes: int = 0  # positions of each row on some axes, for ropes that have axes: [axis][row]
    num_axes: int = 0  # 0: all are the position
    spans: int = 0  # first position and end of the span of each row
    max_span: int = 0  # tokens of the longest; 0: each row is its own
    insert_tokens: int = 0  # rows that others are inserted for
    insert_rows: int = 0  # f32
    inserts: tuple[InsertedPart, ...] = ()

    @property
    def pointers(self) -> tuple[int, ...]:
        """All pointers to the step's inputs."""
        return *(getattr(self, name) for name in POINTERS), *chain.from_iterable(self.groups)

    @property
    def sizes(self) -> tuple[Any, ...]:
        """What else launches depend on."""
        return tuple(getattr(self, name) for name in SIZES)

    def traced(self) -> StepInputs:
        """The same, with pointers that launch lists find again."""
        every = [StepPointer(value, place) for place, value in enumerate(self.pointers)]
        named = dict(zip(POINTERS, every, strict=False))
        rest = every[len(POINTERS) :]
        groups = tuple(GroupTables(*rest[i : i + 3]) for i in range(0, len(rest), 3))
        return replace(self, groups=groups, **named)  # type: ignore[arg-type]


POINTERS = (
    "tokens", "previous", "positions", "sequences", "q_starts", "lengths", "logits_indices", "reads", "writes",
    "adapters", "adapter_weights", "axes", "spans", "insert_tokens", "insert_rows",
)  # fmt: skip
SIZES = tuple(field.name for field in fields(StepInputs) if field.name not in (*POINTERS, "groups"))


@dataclass
class Launcher:
    """Launches kernels on a stream, each right behind the one before it; scratch memory stays while this does."""

    device: Session
    stream: Any
    held: list[Any] = field(default_factory=list)
    is_first: bool = True

    def launch(self, entry: Entry, grid: int | tuple[int, ...], threads: int, *args: Any) -> None:
        """Pointers and numbers, as the kernel has them. Kernels wait for the one before (`wait_for_previous`)."""
        self.device.launch(entry, grid, threads, *args, stream=self.stream, dependent=not self.is_first)
        self.is_first = False

    def multiply(self, *args: Any, **options: Any) -> None:
        """A product by cuBLAS, as `Session.add_product` describes it."""
        launches = LaunchList()
        self.device.add_product(launches, *args, **options)
        self.device.launch_list(launches, self.stream)

    def scratch(self, name: str, nbytes: int, zeros: bool = False) -> int:
        """Memory by name that kernels of one operation use; the next user of the name overwrites it."""
        pointer = self.device.scratch(name, nbytes, zeros)
        self.held.append(self.device._scratch[name])
        return pointer


@dataclass
class LaunchRecorder(Launcher):
    """Launches some kernels at a time, and keeps the list of all."""

    launches: LaunchList = field(default_factory=LaunchList)
    sent: int = 0

    def launch(self, entry: Entry, grid: int | tuple[int, ...], threads: int, *args: Any) -> None:
        self.device.add(self.launches, entry, grid, threads, args, not self.is_first)
        self.is_first = False
        if len(self.launches) - self.sent >= PIECE:
            self.send()

    def multiply(self, *args: Any, **options: Any) -> None:
        self.device.add_product(self.launches, *args, **options)

    def send(self) -> None:
        """Launch what was added and not launched yet."""
        self.device.launch_list(self.launches, self.stream, self.sent)
        self.sent = len(self.launches)


@dataclass
class Collector(Launcher):
    """Launches no kernels: it says which would be launched. Products are made, for which cuBLAS loads its kernels."""

    entries: dict[Entry, None] = field(default_factory=dict)

    def launch(self, entry: Entry, grid: int | tuple[int, ...], threads: int, *args: Any, **_options: Any) -> None:
        self.entries[entry] = None
