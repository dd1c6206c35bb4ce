"""Sampling on an adapter: what samples ask for, packed for one upload, and the kernel that chooses their tokens.

The semantics are those of `fewbit.ops.sampling`. A workgroup serves a sample. Kept tokens are always the first of the
order by logit, then by id, so a cut is a logit and an id; it is found bit by bit. Few tokens are sorted in workgroup
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from ...arrays import Floats, Ints, Words
from ...errors import DataError
from .. import sampling
from ..sampling_arrays import Bias, Seen, bias_list, logits_error, mask_list, seen_list
from .device import Dispatch, Memory
from .multiply import ONE, RowsAt
from .wgsl import Kernel, main, reads, u32s, writes

if TYPE_CHECKING:
    from ...devices.batch import Sample

THREADS = 256
MAX_SORTED = 256  # kept tokens that are sorted
# What the front of a sample holds, in this order.
FIELDS = {
    "row": "i32", "top_k": "u32", "seen_at": "u32", "seen_count": "u32", "bias_at": "u32", "bias_count": "u32",
    "mask_at": "u32", "uniform": "f32", "top_p": "f32", "min_p": "f32", "by": "f32", "repetition": "f32",
    "presence": "f32", "frequency": "f32", "greedy": "u32",
}  # fmt: skip
WORDS = len(FIELDS)
_PACK = Struct("<" + "".join({"f32": "f", "i32": "i", "u32": "I"}[kind] for kind in FIELDS.values()))
COLDEST = 1e-30  # temperature; what is colder changes nothing


class PackedSamples(NamedTuple):
    """What the samples of a step ask for; those that cannot be sampled have an error and no row."""

    data: Words
    errors: dict[int, Exception]


def pack_samples(samples: Sequence[tuple[int, Sample]], vocab: int) -> PackedSamples:
    """Samples with the numbers of their rows."""
    head, errors = bytearray(), dict[int, Exception]()
    tail, at = [np.zeros(0, np.uint32)], len(samples) * WORDS

    def put(array: Ints | Floats | Words) -> int:
        nonlocal at
        tail.append(np.ascontiguousarray(array).view(np.uint32))
        at += array.size
        return at - array.size

    for number, (index, one) in enumerate(samples):
        try:
            seen, bias, mask = _checked(one, vocab)
        except DataError as error:
            errors[number] = error
            head += _PACK.pack(-1, *(0,) * (WORDS - 1))
            continue
        p = one.params
        seen_at = put(np.concatenate(seen)) if seen and p.has_penalties else 0
        bias_at = 0
        if bias:
            bias_at = put(bias[0].astype(np.int32))
            put(bias[1].astype(np.float32))
        mask_at = 0 if mask is None else put(mask)
        head += _PACK.pack(
            index, p.top_k if p.top_k < vocab else 0, seen_at, len(seen[0]) if seen_at and seen else 0, bias_at,
            len(bias[0]) if bias else 0, mask_at, one.uniform, p.top_p, p.min_p,
            0.0 if p.temperature == 0 else 1 / max(p.temperature, COLDEST), p.repetition_penalty, p.presence_penalty,
            p.frequency_penalty, int(p.temperature == 0),
        )  # fmt: skip
    data = np.concatenate([np.frombuffer(bytes(head), np.uint32), *tail])
    return PackedSamples(data, errors)


def _checked(one: Sample, vocab: int) -> tuple[Seen | None, Bias | None, Words | None]:
    """Lists of a sample as arrays; the reference says what is wrong with them."""
    seen = None if one.seen is None else seen_list([one.seen], 1)[0]
    bias = None if one.bias is None else bias_list([one.bias], 1)[0]
    mask = None if one.mask is None else mask_list([cast("Words", one.mask)], 1, vocab)[0]
    sampling._checked_uniforms([one.uniform], 1)
    sampling._checked_seen([seen], 1, vocab)
    sampling._checked_bias([bias], 1, vocab)
    return seen, bias, mask


def sampled_tokens(results: Ints, errors: dict[int, Exception]) -> list[int | Exception]:
    """The token of each sample, or why there is none; the row is called 0, as it would be alone.

    >>> sampled_tokens(np.array([[7, 0], [0, 2]], np.int32), {})
    [7, LogitsError('row 0 of the logits holds no token that can be sampled: all are -infinity')]
    """
    return [
        errors.get(n) or (logits_error([(0, status)]) if status else token)
        for n, (token, status) in enumerate(results.tolist())
    ]


@cache
def sample() -> Kernel:
    """`own` has a row of logits for each sample; `results` a token and a status (see `ops.sampling_arrays`)."""
    bindings = (reads("x"), reads("samples", "u32"), writes("own"), writes("results", "i32"))
    return Kernel("sample", bindings, u32s("vocab", "x_offset", "x_stride"), f"{_TEXT}\n{main(_MAIN, THREADS)}")


def sample_rows(logits: RowsAt, vocab: int, samples: Memory, own: Memory, results: Memory) -> Dispatch:
    """Samples of rows of logits: `own` has a row without gaps for each sample, `results` two integers."""
    values = {"vocab": vocab, "x_offset": logits.offset, "x_stride": logits.stride}
    return Dispatch(sample(), (logits.memory, samples, own, results), values, (("samples", 1), ONE, ONE), "sample")


_TEXT = f"""\
var<workgroup> sums: array<f32, {THREADS}>;
var<workgroup> tops: array<u32, {THREADS}>;
var<workgroup> keys: array<u32, {MAX_SORTED}>;
var<workgroup> ids: array<u32, {MAX_SORTED}>;
var<workgroup> sorted: array<u32, {MAX_SORTED}>;
var<workgroup> masses: array<f32, {MAX_SORTED}>;
var<workgroup> found: atomic<u32>;
var<workgroup> chosen: u32;
const LEAST = 0x00800000u;
fn ordered(bits: u32) -> u32 {{
  let plain = select(bits, 0u, bits == 0x80000000u);
  return plain ^ select(0x80000000u, 0xffffffffu, (plain >> 31u) == 1u);
}}
fn value(key: u32) -> f32 {{ return bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, (key >> 31u) == 1u)); }}
fn total(t: u32, v: f32) -> f32 {{
  workgroupBarrier();
  sums[t] = v;
  for (var off = {THREADS // 2}u; off > 0u; off >>= 1u) {{
    workgroupBarrier();
    if (t < off) {{ sums[t] += sums[t + off]; }}
  }}
  workgroupBarrier();
  return sums[0];
}}
fn greatest(t: u32, v: u32) -> u32 {{
  workgroupBarrier();
  tops[t] = v;
  for (var off = {THREADS // 2}u; off > 0u; off >>= 1u) {{
    workgroupBarrier();
    if (t < off) {{ tops[t] = max(tops[t], tops[t + off]); }}
  }}
  workgroupBarrier();
  return tops[0];
}}
struct Cut {{ key: u32, id: u32 }}
fn within(key: u32, id: u32, cut: Cut) -> bool {{ return key > cut.key || (key == cut.key && id <= cut.id); }}
fn mass(key: u32, top: f32, by: f32, counts: bool) -> f32 {{
  return select(exp((value(key) - top) * by), 1.0, counts);
}}
fn measure(t: u32, row: u32, cut: Cut, bound: Cut, top: f32, by: f32, counts: bool) -> f32 {{
  var sum = 0.0;
  for (var i = t; i < P.vocab; i += {THREADS}u) {{
    let key = ordered(bitcast<u32>(own[row + i]));
    if (key >= LEAST && within(key, i, cut) && within(key, i, bound)) {{ sum += mass(key, top, by, counts); }}
  }}
  return total(t, sum);
}}
fn reaches(sum: f32, need: f32, strict: bool) -> bool {{ return select(sum >= max(need, 1e-37), sum > need, strict); }}
fn shortened(t: u32, row: u32, bound: Cut, need: f32, strict: bool, top: f32, by: f32, counts: bool) -> Cut {{
  var key = 0u;
  for (var bit = 31; bit >= 0; bit--) {{
    let trial = key | (1u << u32(bit));
    let sum = measure(t, row, Cut(trial, 0xffffffffu), bound, top, by, counts);
    key = select(key, trial, reaches(sum, need, strict));
  }}
  var low = 0u;
  var high = P.vocab - 1u;
  for (var n = 0; n < 20; n++) {{
    let middle = (low + high) / 2u;
    let sum = measure(t, row, Cut(key, middle), bound, top, by, counts);
    let enough = reaches(sum, need, strict);
    high = select(high, middle, enough);
    low = select(min(middle + 1u, high), low, enough);
  }}
  if (within(bound.key, bound.id, Cut(key, high))) {{ return bound; }}
  return Cut(key, high);
}}"""

_NAMED = {"row": "row_index", "uniform": "uniform_number"}  # what WGSL or the kernel calls something else
_FIELDS_READ = "\n".join(
    f"  let {_NAMED.get(name, name)} = bitcast<{kind}>(samples[at + {n}u]);"
    for n, (name, kind) in enumerate(FIELDS.items())
)

_MAIN = f"""\
  let at = wg.x * {WORDS}u;
{_FIELDS_READ}
  if (row_index < 0) {{ return; }}
  let row = wg.x * P.vocab;
  let source = P.x_offset + u32(row_index) * P.x_stride;
  var bad = 0u;
  var live = 0u;
  for (var i = t; i < P.vocab; i += {THREADS}u) {{
    let v = x[source + i];
    let bits = bitcast<u32>(v);
    bad = max(bad, select(0u, 1u, (bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u));
    live = max(live, select(0u, 1u, bits != 0xff800000u));
    own[row + i] = v;
  }}
  storageBarrier();
  for (var i = t; i < bias_count; i += {THREADS}u) {{
    let id = samples[bias_at + i];
    let v = own[row + id];
    let sum = v + bitcast<f32>(samples[bias_at + bias_count + i]);
    let low = bitcast<u32>(sum) == 0xff800000u || bitcast<u32>(v) == 0xff800000u;
    own[row + id] = bitcast<f32>(select(bitcast<u32>(clamp(sum, -3.4028234e38, 3.4028234e38)), 0xff800000u, low));
  }}
  storageBarrier();
  if (mask_at > 0u) {{
    for (var i = t; i < P.vocab; i += {THREADS}u) {{
      let bit = (samples[mask_at + i / 32u] >> (i % 32u)) & 1u;
      own[row + i] = bitcast<f32>(select(0xff800000u, bitcast<u32>(own[row + i]), bit == 1u));
    }}
  }}
  storageBarrier();
  for (var i = t; i < seen_count; i += {THREADS}u) {{
    let id = samples[seen_at + i];
    let times = f32(samples[seen_at + seen_count + i]);
    let v = own[row + id];
    let s = select(v * repetition, v / repetition, v > 0.0) - select(0.0, presence, times > 0.0) - frequency * times;
    let low = bitcast<u32>(v) == 0xff800000u;
    own[row + id] = bitcast<f32>(select(bitcast<u32>(clamp(s, -3.4028234e38, 3.4028234e38)), 0xff800000u, low));
  }}
  storageBarrier();
  bad = greatest(t, bad);
  live = greatest(t, live);
  var best = 0u;
  for (var i = t; i < P.vocab; i += {THREADS}u) {{ best = max(best, ordered(bitcast<u32>(own[row + i]))); }}
  best = greatest(t, best);
  var first = 0u;
  for (var i = t; i < P.vocab; i += {THREADS}u) {{
    if (ordered(bitcast<u32>(own[row + i])) == best) {{ first = max(first, 0xffffffffu - i); }}
  }}
  var token = 0xffffffffu - greatest(t, first);
  var status = 0u;
  if (best < LEAST) {{ status = 3u; }}
  if (live == 0u) {{ status = 2u; }}
  if (bad == 1u) {{ status = 1u; }}
  let top = value(max(best, LEAST));
  if (greedy == 0u) {{
    var cut = Cut(LEAST, 0xffffffffu);
    if (top_k > 0u) {{ cut = shortened(t, row, cut, f32(top_k), false, top, by, true); }}
    if (top_k > 0u && top_k <= {MAX_SORTED}u) {{
      if (t == 0u) {{ atomicStore(&found, 0u); chosen = token; }}
      workgroupBarrier();
      for (var i = t; i < P.vocab; i += {THREADS}u) {{
        let key = ordered(bitcast<u32>(own[row + i]));
        if (key >= LEAST && within(key, i, cut)) {{
          let place = atomicAdd(&found, 1u);
          if (place < {MAX_SORTED}u) {{ keys[place] = key; ids[place] = i; }}
        }}
      }}
      workgroupBarrier();
      let count = min(atomicLoad(&found), {MAX_SORTED}u);
      if (t < count) {{
        var rank = 0u;
        for (var i = 0u; i < count; i++) {{
          rank += select(0u, 1u, keys[i] > keys[t] || (keys[i] == keys[t] && ids[i] < ids[t]));
        }}
        sorted[rank] = ids[t];
        masses[rank] = mass(keys[t], top, by, false);
      }}
      workgroupBarrier();
      if (t == 0u && count > 0u) {{
        var kept = count;
        var sum = 0.0;
        for (var i = 0u; i < count; i++) {{ sum += masses[i]; }}
        if (top_p < 1.0) {{
          let need = top_p * sum;
          var walked = 0.0;
          for (var i = 0u; i < count; i++) {{
            walked += masses[i];
            if (walked >= need) {{ kept = i + 1u; break; }}
          }}
        }}
        var likely = 0u;
        sum = 0.0;
        for (var i = 0u; i < kept; i++) {{ if (masses[i] >= min_p) {{ likely = i + 1u; sum += masses[i]; }} }}
        kept = max(likely, 1u);
        let need = uniform_number * sum;
        var walked = 0.0;
        chosen = sorted[kept - 1u];
        for (var i = 0u; i < kept; i++) {{
          walked += masses[i];
          if (walked > need) {{ chosen = sorted[i]; break; }}
        }}
      }}
      workgroupBarrier();
      token = chosen;
    }} else {{
      if (top_p < 1.0) {{
        let sum = measure(t, row, cut, cut, top, by, false);
        cut = shortened(t, row, cut, top_p * sum, false, top, by, false);
      }}
      if (min_p > 0.0) {{
        var likely = 0.0;
        for (var i = t; i < P.vocab; i += {THREADS}u) {{
          let key = ordered(bitcast<u32>(own[row + i]));
          if (key >= LEAST && within(key, i, cut) && mass(key, top, by, false) >= min_p) {{ likely += 1.0; }}
        }}
        likely = max(total(t, likely), 1.0);
        cut = shortened(t, row, cut, likely, false, top, by, true);
      }}
      let sum = measure(t, row, cut, cut, top, by, false);
      token = shortened(t, row, cut, uniform_number * sum, true, top, by, false).id;
      var last = 0u;
      for (var i = t; i < P.vocab; i += {THREADS}u) {{ last = max(last, select(0u, i, i == token)); }}
      token = greatest(t, last);
    }}
  }}
  if (t == 0u) {{
    results[wg.x * 2u] = i32(token);
    results[wg.x * 2u + 1u] = i32(status);
  }}"""
