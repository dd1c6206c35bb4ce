"""What an executor runs in one step, and what comes back: plain data, the same for every device.

A step is a list of rows. To let rows carry or want something new, add a field to `Row` or `RowResult`, and to
`Row.needs_values` if it comes from the logits: requests set it (engine/request.py), `decode` in host.py or an executor
reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ..arrays import Floats, Ints, Longs, Words
from ..cache.view import View
from ..ops.inserts import Inserted
from ..ops.low_rank import AdapterRows, Terms
from ..ops.sampler_chain import ChainState
from ..ops.sampling import SamplingParams

NO_TOKEN = 0  # the id of rows from outside


@dataclass(slots=True)
class Sample:
    """How a token is sampled from logits."""

    params: SamplingParams
    uniform: float  # from [0, 1)
    seen: tuple[Ints, Ints] | None = None  # token ids, and how often each is in the output
    bias: tuple[Ints, Floats] | None = None  # token ids, and what is added to their logits
    mask: Words | Future[Words | None] | None = None  # bit i % 32 of word i // 32: token i may be sampled
    num_logprobs: int | None = None  # likeliest tokens whose log-probabilities are returned; None: not even its own
    last: int | None = None  # a sample of the previous step, whose token is in the output but not in `seen`
    chain: ChainState | None = None  # other samplers: then it is sampled from logits in host memory

    @property
    def needs_values(self) -> bool:
        """Whether the logits themselves are read."""
        return self.num_logprobs is not None or self.chain is not None


@dataclass(slots=True)
class Score:
    """Tokens whose log-probabilities are wanted: the first by the row's first logits, and so on."""

    targets: Sequence[int]
    num_logprobs: int | None = None  # likeliest tokens returned at each position; None: none


@dataclass(frozen=True, slots=True, eq=False)
class LoadedAdapter:
    """An adapter that an executor has placed.

    Args:
        name: What requests call it.
        key: A text that is the same for the same values, and another one for any other.
        placed: What `place_adapter` gave; None: it changes nothing.
        source: Where it came from.
    """

    name: str
    key: str
    placed: Any
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class AdapterMix:
    """The adapters of a row, each with a weight. They are there as long as somebody has this."""

    terms: tuple[tuple[LoadedAdapter, float], ...]

    @property
    def key(self) -> str:
        """The same for mixes that compute the same."""
        return ",".join(f"{adapter.key}*{weight!r}" for adapter, weight in self.terms)


@dataclass(frozen=True, slots=True, eq=False)
class RowInputs:
    """What a row brings beside its tokens.

    Args:
        inserted: Embeddings in the place of tokens: the number of the part, the first token of the row, rows.
        axes: (axes, tokens) positions for ropes that have axes; None: those of the tokens.
        spans: First position and end of the span of each token; None: each is its own.
    """

    inserted: Sequence[tuple[int, int, Floats]] = ()
    axes: Ints | None = None
    spans: Longs | None = None


@dataclass(slots=True, eq=False)
class Row:
    """The next tokens of a sequence, and what is wanted of the last `num_logits` of them.

    A row without tokens samples once more from the last logits of the row before it: a prompt has several outputs.

    With several samples all tokens but the first of those that are sampled from are drafts. Each is kept if it is what
    was sampled in its place; the result ends with the first sample that differs from its draft, or the last one.
    """

    sequence: int
    tokens: Sequence[int]
    num_logits: int = 0  # trailing tokens whose logits, or hidden states, are computed
    samples: Sequence[Sample] = ()  # from the logits of the last tokens, one each
    score: Score | None = None
    hidden: bool = False  # hidden states are returned; rows of one step all want them, or none does
    adapter: AdapterMix | None = None  # what changes the model for this row
    inputs: RowInputs | None = None  # what it brings beside its tokens

    @property
    def needs_values(self) -> bool:
        """Whether all of its logits or hidden states are read: more than one token is wanted."""
        return self.score is not None or self.hidden or any(one.needs_values for one in self.samples)

    @property
    def drafts(self) -> Sequence[int]:
        """The tokens that are kept only if they are sampled."""
        return self.tokens[len(self.tokens) - len(self.samples) + 1 :] if len(self.samples) > 1 else ()


@dataclass(slots=True, eq=False)
class Batch:
    """The rows of a step, laid out for an executor.

    If the executor runs ahead, `-1 - i` stands for a token that is not known yet: that of sample i of the step launched
    just before.
    """

    rows: Sequence[Row]
    tokens: Ints  # of all rows, one after another
    view: View  # where the cache keeps the sequences of rows with tokens
    logits_indices: Ints  # the tokens whose logits, or hidden states, are computed
    samples: list[tuple[int, Sample]]  # those of the rows, each with the index of its logits
    output: str = "logits"  # or "hidden": a step computes one of them
    adapters: Sequence[AdapterRows] = ()  # those of the rows, each with the tokens that use it
    inserted: Sequence[Inserted] = ()  # embeddings in the place of tokens, at most one of a part
    axes: Ints | None = None  # (axes, tokens) positions for ropes that have axes; None: those of the tokens
    spans: Longs | None = None  # (tokens, 2) of each token; None: each is its own


def lay_out(rows: Sequence[Row], view: View) -> Batch:
    """The batch of rows whose new tokens have pages in a view."""
    tokens: list[int] = []
    indices: list[int] = []
    samples: list[tuple[int, Sample]] = []
    output = "logits"
    for row in rows:
        tokens += row.tokens
        if row.num_logits:
            indices += range(len(tokens) - row.num_logits, len(tokens))
        if row.hidden:
            output = "hidden"
        samples += enumerate(row.samples, len(indices) - len(row.samples))
    arrays = np.array(tokens, np.int32), view, np.array(indices, np.int32)
    batch = Batch(rows, *arrays, samples, output, adapter_rows(rows))
    return add_inputs(batch) if any(row.inputs is not None for row in rows) else batch


def add_inputs(batch: Batch) -> Batch:
    """A batch with what its rows bring beside their tokens."""
    parts: dict[int, list[tuple[int, Floats]]] = {}
    positions = batch.view.positions()
    axes = spans = None
    first = 0
    for row in batch.rows:
        end = first + len(row.tokens)
        if row.inputs is not None:
            for part, token, values in row.inputs.inserted:
                parts.setdefault(part, []).append((first + token, values))
                if part == 0:  # tables beside the embedding have a row for what is no token, the first
                    batch.tokens[first + token : first + token + len(values)] = NO_TOKEN
            if row.inputs.axes is not None:
                if axes is None:
                    axes = np.repeat(positions[None].astype(np.int32), len(row.inputs.axes), axis=0)
                axes[:, first:end] = row.inputs.axes
            if row.inputs.spans is not None:
                if spans is None:
                    spans = np.stack([positions, positions + 1], axis=1)
                spans[first:end] = row.inputs.spans
        first = end
    return replace(batch, inserted=[_inserted(part, found) for part, found in parts.items()], axes=axes, spans=spans)


def _inserted(part: int, found: Sequence[tuple[int, Floats]]) -> Inserted:
    tokens = [np.arange(first, first + len(values), dtype=np.int32) for first, values in found]
    return Inserted(part, np.concatenate(tokens), np.concatenate([values for _, values in found]))


def adapter_rows(rows: Sequence[Row]) -> list[AdapterRows]:
    """Each adapter of a step, with the tokens that use it and those of them whose logits are computed."""
    found: dict[LoadedAdapter, list[list[tuple[int, int, float]]]] = {}
    tokens = logits = 0
    for row in rows:
        for adapter, weight in row.adapter.terms if row.adapter is not None else ():
            of_tokens, of_logits = found.setdefault(adapter, [[], []])
            of_tokens.append((tokens, len(row.tokens), weight))
            of_logits.append((logits, row.num_logits, weight))
        tokens, logits = tokens + len(row.tokens), logits + row.num_logits
    return [AdapterRows(one.placed, *_spread(first), *_spread(last)) for one, (first, last) in found.items()]


def _spread(parts: Sequence[tuple[int, int, float]]) -> tuple[Ints, Floats]:
    """Numbers of rows, and the weight of each.

    >>> _spread([(0, 2, 0.5), (5, 1, 1.0)])
    (array([0, 1, 5], dtype=int32), array([0.5, 0.5, 1. ], dtype=float32))
    """
    numbers = [np.arange(first, first + count, dtype=np.int32) for first, count, _ in parts]
    return np.concatenate(numbers), np.repeat(
        np.array([weight for *_, weight in parts], np.float32), [count for _, count, _ in parts]
    )


def has_late_masks(batch: Batch) -> bool:
    """Whether masks of samples are still computed while the step is launched."""
    return any(isinstance(one.mask, Future) for _, one in batch.samples)


def resolve_masks(samples: Sequence[tuple[int, Sample]]) -> tuple[list[tuple[int, Sample]], dict[int, Exception]]:
    """Samples with the masks that were still computed, and the errors of those that failed, by their number.

    A sample whose mask failed has none: what comes of it is thrown away.
    """
    resolved, errors = [*samples], dict[int, Exception]()
    for number, (index, one) in enumerate(samples):
        if isinstance(one.mask, Future):
            error = one.mask.exception()
            resolved[number] = index, replace(one, mask=None if error else one.mask.result())
            if isinstance(error, Exception):
                errors[number] = error
    return resolved, errors


class Logprobs(NamedTuple):
    """How likely a token was, and the likeliest ones with theirs."""

    own: float
    tokens: Ints
    logprobs: Floats


class Top(NamedTuple):
    """The likeliest tokens at one position, with their log-probabilities."""

    tokens: Ints
    logprobs: Floats


class RowResult(NamedTuple):
    """What a row gave."""

    tokens: Sequence[int] = ()  # sampled, one after another
    logprobs: Sequence[Logprobs] = ()  # of each of them, if wanted
    scores: Floats | None = None  # log-probabilities of the targets
    tops: Sequence[Top] = ()  # the likeliest tokens in the places of the targets, if wanted
    hidden: Floats | None = None  # (num_logits, hidden)


Results = list[RowResult | Exception]  # one for each row; an error ends its request alone


class Handle(Protocol):
    """A step that was launched."""

    def fetch(self) -> Results:
        """Wait for the step, and bring back what its rows gave."""
        ...

    def values(self) -> Floats:
        """The logits or hidden states themselves, in host memory; valid until the next launch."""
        ...


class Executor(Protocol):
    """Runs a model's steps. It knows no request: the engine reserves pages before, and commits tokens after.

    One that `runs_ahead` gets the next step while one is on its way, before that is fetched:

    - Steps, and what the KV store copies, reads and writes, happen in the order of the calls. So pages may be used
      again at once: a step that still reads or writes them comes first.
    - `launch` has read all arrays of the batch when it returns, but for the view, which never changes, and masks that
      are still computed: it or `fetch` waits for these, as late as it can.
    - At most two steps are on their way. They are fetched in order, each once; what is given up after an error, or at
      the end, is not fetched. The results of a step are kept while the next one is launched and runs.
    - A sample that fails gives the next step some token all the same; what comes of it is thrown away.
    """

    vocab: int
    max_batched_tokens: int  # tokens of a step
    max_logits: int  # logits, or hidden states, that come out of a step
    runs_ahead: bool  # whether a step may be launched before the one before was fetched

    def place_adapter(self, terms: Terms) -> Any:
        """An adapter as steps take it, in the device's memory for as long as somebody has it. Never during a launch."""
        ...

    def launch(self, batch: Batch) -> Handle:
        """Begin a step. It may run on after this returns; steps run in the order in which they were launched."""
        ...


class SlicedStep(Protocol):
    """A step that is run in slices."""

    def run(self, seconds: float) -> bool:
        """Go on for about so long. Whether it is done."""
        ...

    def values(self) -> Floats:
        """The hidden states, in host memory; valid until the next step. It must be done."""
        ...


@runtime_checkable
class SlicedExecutor(Protocol):
    """An executor whose steps may be run in slices, with the same results."""

    def slices(self, batch: Batch, given: Floats | None = None) -> SlicedStep:
        """A step that begins with its first slice. One that another step follows before it is done is given up."""
        ...


@runtime_checkable
class ResizableExecutor(Protocol):
    """An executor of a graph without logits whose weights stay where they are when its steps become larger."""

    def resize(self, store: Any, max_tokens: int) -> None:
        """Take a larger store, and steps of more tokens."""
        ...


@runtime_checkable
class PipelinedExecutor(Protocol):
    """An executor that has several parts, which work at the same time on different steps.

    The same holds as for one that runs ahead, but `depth` steps may be on their way, and all their tokens are known: a
    sequence whose next token is being sampled is in no other step.
    """

    depth: int


def pipeline_depth(executor: Executor) -> int:
    """How many steps an executor works on at the same time."""
    return executor.depth if isinstance(executor, PipelinedExecutor) else 1
