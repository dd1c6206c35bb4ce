"""Packing floats on an adapter: int8, int8_affine, int4 and int4_group, all groups, from f32 and f16.

First the least and the greatest value of each group, then words: those of codes by threads that take 32 values each,
those of scales, mins and zero points by a thread each.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arrays import to_array, to_floats
from ...errors import DataError, FormatError, ShapeError
from ...formats import Format, get
from ...formats.spec import FIELD_BYTES, Integers
from .decoders import field_places, row_stride
from .device import Dispatch, Gpu, Memory, open_gpu
from .multiply import ONE
from .planes import chunk_bits
from .tensor import WebGpuTensor
from .weights import Matrix, RowPart, row_blocks, rows_of_a_part
from .wgsl import Kernel, main, reads, u32s, writes

THREADS = 64
GRANULE = 32  # values that a thread packs


def quantize(x: Any, format: str | Format, number: int | None = None) -> WebGpuTensor:
    """Pack rows of finite floats, (n, k), on an adapter.

    Args:
        x: Matrix of floats. f16 is sent as it is, anything else as f32.
        format: "int8", "int8_affine", "int4" or "int4_group", with their options.
        number: The adapter's number. Defaults to the best one.
    """
    fmt, gpu = get(format), open_gpu(number)
    if fmt.placement != "row" or not isinstance(fmt.codes, Integers):
        raise FormatError(f"WebGPU quantizes to int8, int8_affine, int4 and int4_group, not to {fmt}; fb.quantize does")
    given = to_array(x, "weights")
    values = np.ascontiguousarray(given) if given.dtype == np.float16 else to_floats(given, "weights")
    if values.ndim != 2:
        raise ShapeError(f"weights must be a matrix, their shape is {values.shape}")
    if not np.isfinite(values).all():
        raise DataError("weights hold NaN or infinity, which cannot be packed")
    n, k = values.shape
    with gpu.lock:
        parts = _packed(gpu, fmt, values) if n and k else []
        return WebGpuTensor(gpu, fmt, (n, k), Matrix(fmt, n, k, parts, ()))


def _packed(gpu: Gpu, fmt: Format, x: npt.NDArray[Any]) -> list[RowPart]:
    n, k = x.shape
    most = min(rows_of_a_part(gpu, fmt, k), max(1, gpu.binding_bytes // (4 * k + 16)))
    chunks = [(first, _send(gpu, x[first : first + most])) for first in range(0, n, most)]
    ranges = [_ranges(gpu, fmt, memory, min(most, n - first), k, x.dtype) for first, memory in chunks]
    if fmt.per_tensor:
        _widen(gpu, ranges)
    out = []
    for (first, memory), extremes in zip(chunks, ranges, strict=True):
        rows = min(most, n - first)
        packed = gpu.allocate(rows * row_stride(fmt, k) + 4, "weights")
        gpu.run(_pack_dispatches(fmt, memory, extremes, packed, rows, k, x.dtype))
        out.append(RowPart(packed, first, rows))
    return out


def _send(gpu: Gpu, rows: npt.NDArray[Any]) -> Memory:
    return gpu.array(np.append(rows.reshape(-1), np.zeros(2, rows.dtype)), "floats")


def _ranges(gpu: Gpu, fmt: Format, x: Memory, rows: int, k: int, dtype: Any) -> Memory:
    groups = fmt.groups(k)
    out = gpu.allocate(8 * rows * groups, "ranges")
    a, b = row_blocks(rows * groups, 1)
    values = {"n": rows, "k": k, "group": fmt.group or k, "groups": groups}
    gpu.run([Dispatch(find_ranges(dtype == np.float16), (x, out), values, (("one", a), ONE, ("one", b)))])
    return out


def _widen(gpu: Gpu, ranges: list[Memory]) -> None:
    """One range for all rows."""
    every = [gpu.download(one, one.nbytes).view(np.float32).reshape(-1, 2) for one in ranges]
    low, high = min(part[:, 0].min() for part in every), max(part[:, 1].max() for part in every)
    for one, part in zip(ranges, every, strict=True):
        gpu.upload(np.broadcast_to(np.array([low, high], np.float32), part.shape), one)


def _pack_dispatches(
    fmt: Format, x: Memory, ranges: Memory, packed: Memory, rows: int, k: int, dtype: Any
) -> list[Dispatch]:
    stride, places = row_stride(fmt, k), field_places(fmt, k)
    first = min(places[name] for name, _, _ in fmt.fields if name not in fmt.code_bits)
    tail = [places[name] for name, _, _ in fmt.fields if name not in fmt.code_bits]
    values = {
        "n": rows, "k": k, "group": fmt.group or k, "groups": fmt.groups(k), "row_words": stride // 4,
        "tail": first // 4, "field2": tail[1] if len(tail) > 1 else fmt.row_bytes(k), "end": fmt.row_bytes(k),
    }  # fmt: skip
    is_f16 = dtype == np.float16
    out = []
    for kernel, items in (
        (pack_codes(fmt, is_f16), rows * -(-k // GRANULE)),
        (pack_factors(fmt, is_f16), rows * (stride // 4 - first // 4)),
    ):
        a, b = row_blocks(items, THREADS)
        out.append(Dispatch(kernel, (x, ranges, packed), values, (("one", a), ONE, ("one", b))))
    return out


_PARAMETERS = u32s("n", "k", "group", "groups", "row_words", "tail", "field2", "end")


def _given(is_f16: bool) -> str:
    if not is_f16:
        return "fn given(i: u32) -> f32 { return x[i]; }"
    return "fn given(i: u32) -> f32 { let v = unpack2x16float(x[i / 2u]); return select(v.x, v.y, i % 2u == 1u); }"


@cache
def find_ranges(is_f16: bool) -> Kernel:
    """The least and the greatest value of each group of a row: a workgroup each."""
    body = f"""\
  if (block >= P.n * P.groups) {{ return; }}
  let row = block / P.groups;
  let first = block % P.groups * P.group;
  var low = 3.4e38;
  var high = -3.4e38;
  for (var i = first + t; i < min(first + P.group, P.k); i += {THREADS}u) {{
    let v = given(row * P.k + i);
    low = min(low, v);
    high = max(high, v);
  }}
  part[t] = vec2<f32>(low, high);
  for (var off = {THREADS // 2}u; off > 0u; off >>= 1u) {{
    workgroupBarrier();
    if (t < off) {{ part[t] = vec2<f32>(min(part[t].x, part[t + off].x), max(part[t].y, part[t + off].y)); }}
  }}
  if (t == 0u) {{ ranges[block] = part[0]; }}"""
    text = f"{_given(is_f16)}\nvar<workgroup> part: array<vec2<f32>, {THREADS}>;\n{main(body, THREADS)}"
    bindings = (reads("x", "u32" if is_f16 else "f32"), writes("ranges", "vec2<f32>"))
    return Kernel(f"find_ranges{'_f16' if is_f16 else ''}", bindings, u32s("n", "k", "group", "groups"), text)


def _factors(fmt: Format) -> str:
    """fn scale_of(range) and fn zero_of(range, scale): what `formats/encode.py` finds by the format's rule."""
    low, high = fmt.code_range
    scale = {
        "absmax": f"max(abs(r.x), abs(r.y)) / {high}.0",
        "minmax": f"(r.y - r.x) / {high}.0",
        "zero_point": _zero_point_scale(fmt),
    }[fmt.rule]
    assert isinstance(fmt.scale.field, str)
    kept = "unpack2x16float(pack2x16float(vec2<f32>(s, 0.0))).x" if fmt.field_type(fmt.scale.field) == "f16" else "s"
    zero = "0.0"
    if fmt.rule == "zero_point" and fmt.offset and fmt.offset.ints:
        zero_low, zero_high = fmt.offset.ints.range
        zero = f"clamp(away({low}.0 - r.x / select(s, 1.0, s == 0.0)), {zero_low}.0, {zero_high}.0)"
    return f"""\
fn away(v: f32) -> f32 {{ return sign(v) * floor(abs(v) + 0.5); }}
fn scale_of(r: vec2<f32>) -> f32 {{
  let s = {scale};
  return {kept};
}}
fn zero_of(r: vec2<f32>, s: f32) -> f32 {{ return {zero}; }}"""


def _zero_point_scale(fmt: Format) -> str:
    if not fmt.offset or not fmt.offset.ints:
        return ""
    (low, high), (zero_low, zero_high) = fmt.code_range, fmt.offset.ints.range
    parts = [f"(r.y - r.x) / {high - low}.0"]
    parts += [f"r.y / {high - zero_low}.0"] if high != zero_low else []
    parts += [f"r.x / {low - zero_high}.0"] if low != zero_high else []
    text = parts[0]
    for part in parts[1:]:
        text = f"max({text}, {part})"
    return f"max(0.0, {text})"


@cache
def pack_codes(fmt: Format, is_f16: bool) -> Kernel:
    """A thread packs the codes of 32 values of a row; after the last value are zero bits."""
    assert isinstance(fmt.codes, Integers)
    (plane,) = fmt.codes.planes
    low, high = fmt.code_range
    bits = chunk_bits(plane, "c", GRANULE)
    assert bits is not None
    code = {
        "absmax": "away(v / d)",
        "minmax": "floor((v - r.x) / d + 0.5)",
        "zero_point": "away(v / d) + zero_of(r, s)",
    }[fmt.rule]
    puts = "\n".join(
        f"  if (first + {n}u < P.k) {{ w{at // 32} |= code(row, first + {n}u) << {at % 32}u; }}"
        for n, at in enumerate(bits.fixed)
    )
    stored = f"u32(i32(q) + {fmt.codes.zero})" if not fmt.codes.signed else f"u32(i32(q)) & {(1 << plane.bits) - 1}u"
    body = f"""\
  let each = (P.k + {GRANULE - 1}u) / {GRANULE}u;
  let i = block * {THREADS}u + t;
  if (i >= P.n * each) {{ return; }}
  let row = i / each;
  let c = i % each;
  let first = c * {GRANULE}u;
{"".join(f"  var w{n} = 0u;{chr(10)}" for n in range(bits.words))}{puts}
  let at = row * P.row_words + ({bits.moved_bytes}) / 4u;
{"".join(f"  packed[at + {n}u] = w{n};{chr(10)}" for n in range(bits.words))}"""
    text = f"""\
{_given(is_f16)}
{_factors(fmt)}
fn code(row: u32, i: u32) -> u32 {{
  let r = ranges[row * P.groups + min(i / P.group, P.groups - 1u)];
  let s = scale_of(r);
  let d = select(s, 1.0, s == 0.0);
  let v = given(row * P.k + i);
  let q = clamp({code}, {low}.0, {high}.0);
  return {stored};
}}
{main(body, THREADS)}"""
    return Kernel(f"pack_codes_{fmt.native_name}", _bindings(is_f16), _PARAMETERS, text)


@cache
def pack_factors(fmt: Format, is_f16: bool) -> Kernel:
    """A thread makes a word of what lies after the codes of a row, byte by byte."""
    fields = [(name, kind) for name, kind, _ in fmt.fields if name not in fmt.code_bits]
    values = []
    for name, kind in fields:
        value = "r.x" if name == "min" else "s" if name == fmt.scale.field else "zero_of(r, s)"
        word = {"f32": f"bitcast<u32>({value})", "f16": f"pack2x16float(vec2<f32>({value}, 0.0))"}.get(
            kind, f"u32(i32({value}))"
        )
        values.append((FIELD_BYTES[kind], word))
    first_size, first = values[0]
    second_size, second = values[1] if len(values) > 1 else (1, "0u")
    body = f"""\
  let each = P.row_words - P.tail;
  let i = block * {THREADS}u + t;
  if (i >= P.n * each) {{ return; }}
  let row = i / each;
  var word = 0u;
  for (var n = 0u; n < 4u; n++) {{
    let byte = (P.tail + i % each) * 4u + n;
    if (byte < P.end) {{
      let is_first = byte < P.field2;
      let place = select(byte - P.field2, byte - P.tail * 4u, is_first);
      let g = select(place / {second_size}u, place / {first_size}u, is_first);
      let r = ranges[row * P.groups + g];
      let s = scale_of(r);
      let one = ({first}) >> (place % {first_size}u * 8u);
      let other = ({second}) >> (place % {second_size}u * 8u);
      let bits = select(other, one, is_first);
      word |= (bits & 255u) << (8u * n);
    }}
  }}
  packed[row * P.row_words + P.tail + i % each] = word;"""
    text = f"{_given(is_f16)}\n{_factors(fmt)}\n{main(body, THREADS)}"
    return Kernel(f"pack_factors_{fmt.native_name}", _bindings(is_f16), _PARAMETERS, text)


def _bindings(is_f16: bool) -> Any:
    return (reads("x", "u32" if is_f16 else "f32"), reads("ranges", "vec2<f32>"), writes("packed", "u32"))
