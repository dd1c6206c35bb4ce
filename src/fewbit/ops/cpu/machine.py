"""Native code on this machine: instruction sets, threads, formats by number, limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from ... import _native
from ...arrays import Bytes
from ...errors import ArgumentError, DtypeError, FormatError
from ...formats import Format, get
from ...interleave import RowLayout
from ...tensor import QuantTensor
from ...validation import to_size
from ..cores import usable_cores


def isas() -> list[str]:
    """Instruction sets that can be used here, best first."""
    return _native.isas()


def known_isas() -> list[str]:
    """Instruction sets that this build has kernels for, best first."""
    return _native.known_isas()


def isa() -> str:
    """The instruction set in use."""
    return _native.isa()


@contextmanager
def forced_isa(name: str) -> Iterator[None]:
    """Use another instruction set within a `with` block, for tests and measurements in one thread."""
    before = isa()
    use_isa(name)
    try:
        yield
    finally:
        use_isa(before)


def use_isa(name: str) -> None:
    """Use this instruction set from now on; FEWBIT_ISA does the same at start."""
    if not isinstance(name, str):
        raise DtypeError(f"name must be one of {', '.join(isas())}, not {type(name).__name__}")
    try:
        _native.use_isa(name)
    except ValueError as error:
        raise ArgumentError(str(error)) from None


def describe_activations(activations: str | None = None) -> str:
    """The precision of inputs of products, in words.

    >>> describe_activations("int16")
    'int16'
    """
    if activations is not None:
        return activations
    return "int16 for one token at a time, int8 for more" if _native.int16_rows() else "int8"


def kernel(
    format: str | Format, k: int = 4096, m: int = 1, layout: RowLayout = "rows", activations: str | None = None
) -> str:
    """The kernel that multiplies m rows of inputs by weights of this format: "gemv" (a row of weights at a time),
    "micro" (a micro-kernel over packed panels), "skinny" (8-bit matrix tiles), "fused" and "packed" (bf16 matrix
    tiles, decoding while or before they multiply), "f32" (weights as floats)."""
    fmt = get(format)
    return _native.path(number(fmt), fmt.group, k, m, layout == "interleaved16", activations)[0]


def inputs_of(
    format: str | Format, k: int = 4096, m: int = 1, layout: RowLayout = "rows", activations: str | None = None
) -> str:
    """The precision in which that kernel takes inputs: "f32", "bf16", "q8" (8 bits) or "q16" (16 bits).

    >>> inputs_of("f32"), inputs_of("q4_k", activations="int8"), inputs_of("q4_k", activations="int16")
    ('f32', 'q8', 'q16')
    """
    fmt = get(format)
    return _native.path(number(fmt), fmt.group, k, m, layout == "interleaved16", activations)[1]


def kernel_ranges(format: str | Format, k: int = 4096, most: int = 1024) -> list[tuple[int, str]]:
    """The kernels for 1, 2, ... rows of inputs, each with the first number that it is used for.

    >>> kernel_ranges("f32")
    [(1, 'f32')]
    """
    names = [kernel(format, k, m) for m in range(1, most + 1)]
    return [(i + 1, name) for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


def read_seconds(data: Bytes, threads: int | None = None, prefetch: bool = False) -> float:
    """How long a plain loop takes to read these bytes once; `prefetch`: with software prefetch."""
    return _native.probe_read(data, checked_threads(threads), prefetch)


def multiply_rate(kind: str, threads: int | None = None, seconds: float = 0.1) -> float:
    """Multiply-adds per second of values in registers, 0 if unsupported; kind is "int8", "bf16" or "f32"."""
    return _native.probe_rate(kind, seconds, checked_threads(threads))


@cache
def default_threads() -> int:
    """The default number of threads."""
    given = os.environ.get("FEWBIT_THREADS")
    if given is None:
        return min(usable_cores(), _native.max_threads)
    return _checked(int(given) if given.isdecimal() else given, "FEWBIT_THREADS")


def checked_threads(threads: int | None) -> int:
    """A number of threads; None for the default."""
    return default_threads() if threads is None else _checked(threads, "threads")


def _checked(threads: Any, what: str) -> int:
    return to_size(threads, what, 1, _native.max_threads, error=ArgumentError)


@cache
def _numbers() -> dict[str, int]:
    return {name: i for i, name in enumerate(_native.format_names())}


_known: dict[str, int] = {}  # by name: the hash of a whole record would take longer than a short product


def number(fmt: Format) -> int:
    """The number of a format in native code."""
    number = _known.get(fmt.name)
    if number is None:
        number = _numbers().get(fmt.native_name)
        if number is None:
            raise FormatError(f"{fmt} is not in the native module; build it again after `make emit`")
        _known[fmt.name] = number
    return number


def packed(w: QuantTensor) -> tuple[int, int, Bytes, int, bool]:
    """A matrix, or all rows of several, for native code."""
    return number(w.format), w.format.group, w.stored, w.rows, w.layout == "interleaved16"
