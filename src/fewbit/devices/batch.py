"""What an executor runs in one step, and what comes back: plain data, the same for every device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ..arrays import Floats, Ints, Words
from ..cache.view import View
from ..ops.sampling import SamplingParams


@dataclass(slots=True)
class Chunk:
    """The next tokens of a sequence."""

    sequence: int
    tokens: Sequence[int]
    num_logits: int = 0  # of how many of the last of them rows of the output are needed


@dataclass(slots=True)
class Sample:
    """A token to be sampled from a row of logits. Several may come from one row."""

    row: int
    params: SamplingParams
    uniform: float  # from [0, 1)
    seen: tuple[Ints, Ints] | None = None  # token ids, and how often each is in the output
    bias: tuple[Ints, Floats] | None = None  # token ids, and what is added to their logits
    mask: Words | None = None  # bit i % 32 of word i // 32: token i may be sampled
    num_logprobs: int | None = None  # of how many of the likeliest tokens; None: none is told
    last: int | None = None  # a sample of the step before, whose token is in the output too: `seen` lacks it


@dataclass(slots=True)
class Score:
    """Tokens whose log-probabilities are wanted, by the logits from a row on."""

    row: int
    targets: Sequence[int]
    num_logprobs: int | None = None  # of how many of the likeliest tokens in each place; None: none is told


@dataclass(slots=True, eq=False)
class Batch:
    """A step: some tokens of some sequences, and what is to be done with the rows that come out.

    If the executor runs ahead, `-1 - i` stands for a token that is not known yet: that of sample i of the step launched
    just before.
    """

    tokens: Ints  # of all sequences, one after another
    view: View  # where the cache keeps those sequences
    logits_indices: Ints  # the tokens whose rows come out
    output: str = "logits"  # or "hidden": the rows that logits are made from
    samples: list[Sample] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)


class Logprobs(NamedTuple):
    """How likely a token was, and the likeliest ones with theirs."""

    own: float
    tokens: Ints
    logprobs: Floats


class Top(NamedTuple):
    """The likeliest tokens in one place, with their log-probabilities."""

    tokens: Ints
    logprobs: Floats


class Sampled(NamedTuple):
    token: int
    logprobs: Logprobs | None


@dataclass(slots=True, eq=False)
class Outputs:
    """What a step gave. An error in the place of a result ends its request alone."""

    samples: list[Sampled | Exception]  # one for each of the batch
    scores: list[Floats | Exception]
    hidden: Floats | None = None  # (rows, hidden)
    tops: list[list[Top]] = field(default_factory=list)  # beside `scores`: the likeliest tokens in each place


class Handle(Protocol):
    """A step that was launched."""

    def fetch(self) -> Outputs:
        """Wait for the step, and bring back what it gave."""
        ...

    def rows(self) -> Floats:
        """The rows themselves, logits or hidden, in host memory; valid until the next launch."""
        ...


class Executor(Protocol):
    """Runs a model's steps. It knows no request: the engine reserves pages before, and commits tokens after.

    One that `runs_ahead` gets the next step while one is on its way, before that is fetched:

    - Steps, and what the KV store copies, reads and writes, happen in the order of the calls. So pages may be used
      again at once: a step that still reads or writes them comes first.
    - `launch` has read all arrays of the batch when it returns, but for the view, which never changes.
    - At most two steps are on their way. They are fetched in order, each once; what is given up after an error, or at
      the end, is not fetched. The samples of a step are kept while the next one is launched and runs; its scores and
      hidden rows need not be, the engine fetches them first.
    - A sample that fails gives the next step some token all the same; what comes of it is thrown away.
    """

    vocab: int
    max_batched_tokens: int  # tokens of a step
    max_logits: int  # rows that come out of a step
    adapters: frozenset[str]  # by name; requests may ask for these only
    runs_ahead: bool  # whether a step may be launched before the one before was fetched

    def launch(self, batch: Batch) -> Handle:
        """Begin a step. It may run on after this returns; steps run in the order in which they were launched."""
        ...
