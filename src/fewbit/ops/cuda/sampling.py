"""Sampling on a GPU: what samples ask for, packed for one upload; the two kernels; what they give.

The semantics are those of `fewbit.ops.sampling`. Lists of the likeliest tokens are not made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from ...arrays import Floats, Ints, Words
from ...errors import ArgumentError, DataError
from .. import sampling
from ..sampling_arrays import Bias, Seen, bias_list, logits_error, mask_list, seen_list
from . import kernels_sampling as kernels
from .session import Session
from .values import Launcher, Rows

if TYPE_CHECKING:
    from ...devices.batch import Sample

# One for each slot, as SampleParams in csrc/cuda/sample_params.h; places count words of 4 bytes from the first slot on.
PARAMS = np.dtype(
    [
        *((name, "<f8") for name in ("uniform", "top_p", "repetition_penalty", "presence_penalty")),
        *(("frequency_penalty", "<f8"), ("temperature", "<f4"), ("by", "<f4"), ("min_p", "<f4"), ("spare", "<f4")),
        *((name, "<i4") for name in ("row", "top_k", "seen_at", "seen_count", "bias_at", "bias_count")),
        *((name, "<i4") for name in ("mask_at", "last", "changes", "needs_total")),
    ]
)
_PACK = Struct("<5d4f10i")
_SLOT_WORDS = _PACK.size // 4
_NO_SAMPLE = _PACK.pack(*(0,) * 9, -1, *(0,) * 9)
UNUSED = 4  # status of a slot without a sample; others are 0 or a reason of `sampling_arrays`
COLDEST = 1e-30  # temperature; what is colder changes nothing
LEAST_MIN_P = 1e-37  # what is less keeps every token that can be told from none in float32
_PAIRS = 2048  # seen tokens and biases of a sample for which a buffer has space, on average


class Packed(NamedTuple):
    """What the samples of a step ask for; those that cannot be sampled have an error and an unused slot."""

    words: Words
    errors: dict[int, Exception]
    slots: int


class Sampler:
    """Samples tokens from rows on a GPU. Tokens, log-probabilities and status lie in one buffer, at a fixed address."""

    def __init__(self, device: Session, max_samples: int, vocab: int) -> None:
        if not 0 < vocab <= kernels.MAX_VOCAB:
            raise ArgumentError(f"GPUs sample from 1 to {kernels.MAX_VOCAB} tokens, the vocabulary has {vocab}")
        self.device, self.max_samples, self.vocab = device, max_samples, vocab
        self._buffer = device.allocate(self.nbytes)
        device.fill(self.results, 0, self.nbytes)

    @property
    def nbytes(self) -> int:
        """Of the results: int32 tokens, float32 log-probabilities, int32 status, `max_samples` of each."""
        return 12 * self.max_samples

    @property
    def results(self) -> int:
        return int(self._buffer.handle)

    @property
    def tokens(self) -> int:
        """Where the tokens lie: the next step may read them as `previous`."""
        return self.results

    @property
    def max_packed_bytes(self) -> int:
        """How large a buffer for packed samples should be; a step that needs more is sampled on the host."""
        return self.max_samples * (_PACK.size + 8 * _PAIRS + 4 * -(-self.vocab // 32))

    def fits(self, packed: Packed) -> bool:
        return packed.words.nbytes <= self.max_packed_bytes

    def launch(self, run: Launcher, logits: Rows, packed: int, num_slots: int, previous: int | None = None) -> None:
        """Sample from rows by the packed samples at a pointer, aligned to 8 bytes; so many slots were packed.

        `previous`: tokens of the step before, for samples that name one of them as their last.
        """
        if logits.width != self.vocab or not 0 < num_slots <= self.max_samples:
            raise ArgumentError(
                f"rows of {self.vocab} logits and 1 to {self.max_samples} samples can be sampled, "
                f"rows of {logits.width} and {num_slots} samples were given"
            )
        i, chunks = np.int32, -(-self.vocab // kernels.CHUNK)
        changed = run.scratch("sample_changed", 4 * num_slots * self.vocab)
        groups = run.scratch("sample_groups", 4 * num_slots * chunks * (kernels.CHUNK // kernels.GROUP))
        tops = run.scratch("sample_chunks", kernels.CHUNK_BYTES * num_slots * chunks)
        rows = (logits.pointer, i(logits.stride), i(self.vocab), packed)
        before = self.tokens if previous is None else previous
        scan, pick = kernels.sample_scan(), kernels.sample_pick()
        run.launch(scan, (chunks, num_slots), kernels.SCAN_THREADS, *rows, before, changed, groups, tops)
        results = [self.results + 4 * part * self.max_samples for part in range(3)]
        run.launch(pick, num_slots, kernels.PICK_THREADS, *rows, changed, groups, tops, i(chunks), *results)

    def download(self) -> Ints:
        """Wait, and bring the results: (3, max_samples), log-probabilities as the bits of float32."""
        return self.device.download(self.results, np.empty((3, self.max_samples), np.int32))


def decoded(results: Ints, num_samples: int, errors: dict[int, Exception]) -> list[tuple[int, float] | Exception]:
    """Token and log-probability of each sample, or why there is none; the row is called 0, as it would be alone.

    >>> decoded(np.array([[7, 0], [0, 0], [0, 2]], np.int32), 2, {})
    [(7, 0.0), LogitsError('row 0 of the logits holds no token that can be sampled: all are -infinity')]
    """
    tokens, logprobs, status = results[0].tolist(), results[1].view(np.float32).tolist(), results[2].tolist()
    out: list[tuple[int, float] | Exception] = []
    for s in range(num_samples):
        if s in errors:
            out.append(errors[s])
        elif status[s]:
            out.append(logits_error([(0, status[s])]))
        else:
            out.append((tokens[s], logprobs[s]))
    return out


def pack_samples(samples: Sequence[tuple[int, Sample]], vocab: int, slots: int | None = None) -> Packed:
    """All that samples ask for, each with the index of its logits, in words for one upload.

    Slots beyond the samples are not used.
    """
    count = len(samples) if slots is None else slots
    if len(samples) > count:
        raise ArgumentError(f"{len(samples)} samples do not fit in {count} slots")
    head = bytearray(_NO_SAMPLE * count)
    tail = _Tail(count * _SLOT_WORDS)
    errors: dict[int, Exception] = {}
    for s, (index, one) in enumerate(samples):
        try:
            _PACK.pack_into(head, s * _PACK.size, *_fields(index, one, vocab, tail))
        except DataError as error:
            errors[s] = error
    return Packed(np.concatenate([np.frombuffer(head, np.uint32), *tail.parts]), errors, count)


class _Tail:
    """The parts of different lengths, behind the slots."""

    def __init__(self, at: int) -> None:
        self.at, self.parts = at, list[Words]()

    def put(self, array: Ints | Floats | Words) -> int:
        """Where it begins."""
        begin = self.at
        self.parts.append(array.view(np.uint32))
        self.at += array.size
        return begin

    def add(self, pair: Seen | Bias | None) -> tuple[int, int]:
        """Where tokens and then their numbers begin, and how many there are."""
        if pair is None or not len(pair[0]):
            return 0, 0
        begin = self.put(pair[0])
        self.put(pair[1])
        return begin, len(pair[0])


def _fields(index: int, one: Sample, vocab: int, tail: _Tail) -> tuple[Any, ...]:
    p, last = one.params, one.last
    seen = None if one.seen is None else seen_list([one.seen], 1)[0]
    bias = None if one.bias is None else bias_list([one.bias], 1)[0]
    mask = None if one.mask is None else mask_list([cast("Words", one.mask)], 1, vocab)[0]  # it is there by now
    if not _is_valid(one.uniform, seen, bias, vocab):  # the reference says what is wrong
        sampling.sample(np.zeros((1, vocab)), [p], [one.uniform], [seen], bias=[bias], masks=[mask])
    min_p = p.min_p if p.min_p >= LEAST_MIN_P else 0.0
    top_k = p.top_k if p.top_k < vocab else 0
    temperature = max(p.temperature, COLDEST) if p.temperature else 0.0
    needs_total = temperature > 0 and top_k == 0 and (p.top_p < 1 or min_p == 0)
    has_penalties = (seen is not None or last is not None) and p.has_penalties
    seen_at, seen_count = tail.add(seen) if has_penalties else (0, 0)
    bias_at, bias_count = tail.add(bias)
    mask_at = 0 if mask is None else tail.put(np.ascontiguousarray(mask))
    before = last if last is not None and has_penalties else -1
    return (
        *(one.uniform, p.top_p, p.repetition_penalty, p.presence_penalty, p.frequency_penalty),
        *(temperature, 1 / temperature if temperature else 1.0, min_p, 1 - (p.top_p if p.top_p < 1 else one.uniform)),
        *(index, top_k, seen_at, seen_count, bias_at, bias_count, mask_at, before),
        *(seen_count > 0 or bias_count > 0 or mask is not None or before >= 0, needs_total),
    )


def _is_valid(uniform: float, seen: Seen | None, bias: Bias | None, vocab: int) -> bool:
    """Whether nothing is wrong, by a quick look."""
    if not 0 <= uniform < 1:
        return False
    if seen and not (_are_tokens(seen[0], vocab) and seen[1].min(initial=0) >= 0):
        return False
    return not bias or (_are_tokens(bias[0], vocab) and bool((bias[1] < np.inf).all()))


def _are_tokens(ids: Ints, vocab: int) -> bool:
    """Whether all are token ids, each given once."""
    if not len(ids):
        return True
    ordered = np.sort(ids)
    return bool(ordered[0] >= 0 and ordered[-1] < vocab and (ordered[1:] != ordered[:-1]).all())
