"""Small integers of a record as WGSL: where the bits of an element lie, by its number or for 16 elements at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...formats.spec import Integers, Plane

CHUNK = 16  # elements of a row that a thread decodes at once

Reader = Callable[[str], str]  # a field's first byte, as an expression, by the field's name


@dataclass(frozen=True)
class PlaneBits:
    """Bits of 16 elements of a plane: each at `fixed` bits after a place that the number of the 16 elements moves."""

    moved_bytes: str
    moved_shift: str
    fixed: tuple[int, ...]
    bytes_step: int  # what divides `moved_bytes`
    bits: int  # of an element

    @property
    def words(self) -> int:
        return (max(self.fixed) + self.bits - 1) // 32 + 1


def element(integers: Integers, prefix: str, place: Reader, i: str) -> str:
    """The value of element number `i`, any expression, as an expression of i32."""
    parts = [
        _member(plane, f"((({prefix}_bits({place(plane.field)}, {_bit(plane, i)})) & {mask(plane)}u) << {shift}u)", i)
        for plane, shift in zip(integers.planes, shifts(integers), strict=True)
    ]
    return valued(integers, f"({' | '.join(parts)})")


def valued(integers: Integers, code: str) -> str:
    """A code as the value that it stands for."""
    if integers.signed:
        unused = 32 - integers.bits
        return f"(bitcast<i32>({code} << {unused}u) >> {unused}u)"
    return f"({integers.times} * i32({code}) - {_number(integers.zero)})"


def _number(value: int) -> str:
    return f"({value})" if value < 0 else str(value)


def shifts(integers: Integers) -> list[int]:
    """How far up the bits of each plane are in the codes of its elements."""
    planes = integers.planes
    return [sum(p.bits for p in planes[:n] if _overlap(p, plane)) for n, plane in enumerate(planes)]


def mask(plane: Plane) -> int:
    return (1 << plane.bits) - 1


def _overlap(a: Plane, b: Plane) -> bool:
    if a.elements is None or b.elements is None:
        return True
    return a.elements[0] < b.elements[1] and b.elements[0] < a.elements[1]


def _member(plane: Plane, value: str, i: str) -> str:
    if plane.elements is None:
        return value
    first, end = plane.elements
    return f"select(0u, {value}, {i} >= {first}u && {i} < {end}u)"


def _bit(plane: Plane, i: str) -> str:
    """The first bit of an element, in its field."""
    n = f"({i} - {plane.elements[0]}u)" if plane.elements else i
    terms, divided = [f"{plane.start}u"], 1
    for size, stride in plane.digits[:-1]:
        terms.append(f"({n} / {divided}u) % {size}u * {stride}u")
        divided *= size
    terms.append(f"({n} / {divided}u) * {plane.digits[-1][1]}u")
    return " + ".join(terms)


def chunk_bits(plane: Plane, c: str, count: int = CHUNK) -> PlaneBits | None:
    """Where elements `count` * c + 0, 1, ... lie; None if they cannot be told apart from their number."""
    if plane.elements is not None or plane.start:
        return None
    fixed, indices, span, divided = [0] * count, list(range(count)), count, 1
    moved_bytes, moved_shifts, step = [], [], 0
    for number, (size, stride) in enumerate(plane.digits):
        is_last = number == len(plane.digits) - 1
        if is_last or size % span == 0:
            own = indices if span > 1 else [0] * count
            modulus = "" if is_last else f" % {size // span}u"
            term, unit = f"({c} / {divided}u){modulus}", span * stride
            limit = 8 if is_last else (size // span - 1) * unit
            divided *= 1 if is_last else size // span
            indices, span = [0] * count, 1
        elif span % size == 0:
            own, term, unit, limit = [n % size for n in indices], "", 0, 0
            indices, span = [n // size for n in indices], span // size
        else:
            return None
        fixed = [bit + n * stride for bit, n in zip(fixed, own, strict=True)]
        if unit % 8 == 0:
            if term and unit:
                moved_bytes.append(f"{term} * {unit // 8}u")
                step |= unit // 8
        elif limit >= 8:
            return None
        else:
            moved_shifts.append(f"{term} * {unit}u")
    crosses = any(bit % 8 + plane.bits > 8 for bit in fixed)
    if len(moved_shifts) + crosses > 1:
        return None
    moved = " + ".join(moved_bytes) or "0u", " + ".join(moved_shifts) or "0u"
    return PlaneBits(*moved, tuple(fixed), step & -step, plane.bits)


def quad(bits: PlaneBits, plane: Plane, words: Sequence[str], first: int) -> str:
    """Four elements from number `first` on as the bytes of a word."""
    places = bits.fixed[first : first + 4]
    at, word = places[0] % 32, places[0] // 32
    if at < 8 and [p - places[0] for p in places] == [0, 8, 16, 24]:
        shifted = f"({words[word]} >> ({bits.moved_shift} + {at}u))" if at or bits.moved_shift != "0u" else words[word]
        return shifted if plane.bits == 8 else f"({shifted} & {mask(plane) * 0x01010101:#x}u)"
    parts = (f"(({_one(bits, words, p)} & {mask(plane):#x}u) << {8 * n}u)" for n, p in enumerate(places))
    return f"({' | '.join(parts)})"


def _one(bits: PlaneBits, words: Sequence[str], at: int) -> str:
    """An element, with others above it."""
    low = f"({words[at // 32]} >> ({bits.moved_shift} + {at % 32}u))"
    if at % 32 + bits.bits <= 32:
        return low
    return f"({low} | ({words[at // 32 + 1]} << {32 - at % 32}u))"
