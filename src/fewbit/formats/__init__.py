"""Block formats: what they are (`spec`), all of them (`table`), the NumPy decoder and encoders.

>>> from fewbit.formats import get
>>> get("q4_k").bits_per_weight
4.5
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..errors import FormatError
from .spec import K_BLOCK, Format
from .table import FAMILIES, FORMATS

__all__ = ["K_BLOCK", "Format", "all_formats", "from_gguf", "get"]

_BY_NAME = {f.name: f for f in FORMATS}
_BY_GGUF = {f.gguf: f for f in FORMATS if f.gguf is not None}


def all_formats() -> dict[str, Format]:
    """Every format by name, families with their default options.

    >>> "q6_k" in all_formats()
    True
    """
    return dict(_BY_NAME)


def get(name: str | Format) -> Format:
    """A format by name.

    Args:
        name: Name such as "q4_k". Families take options after a colon: "int4_group:group=64,scale=f16".

    >>> get("int4_group:group=64,scale=f16").group
    64
    """
    if isinstance(name, Format):
        return name
    if not isinstance(name, str):
        raise FormatError(f"format must be a name or a Format, not {type(name).__name__}")
    return _named(name)


@cache
def _named(name: str) -> Format:
    family, _, options = name.lower().partition(":")
    if not options and family in _BY_NAME:
        return _BY_NAME[family]
    if family not in FAMILIES:
        if family in _BY_NAME:
            raise FormatError(f"format {family!r} takes no options, got {options!r}")
        raise FormatError(f"unknown format {name!r}; there are: {', '.join(sorted(_BY_NAME))}")
    make, allowed = FAMILIES[family]
    return make(**dict(_option(family, allowed, text) for text in options.split(",")))


def from_gguf(number: int) -> Format:
    """The format of a GGUF tensor type.

    Args:
        number: Number of the type in GGUF files.

    >>> from_gguf(12).name
    'q4_k'
    """
    if number not in _BY_GGUF:
        raise FormatError(f"unknown GGUF tensor type {number}; known: {sorted(_BY_GGUF)}")
    return _BY_GGUF[number]


def _option(family: str, allowed: dict[str, Any], text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    if key not in allowed:
        raise FormatError(f"format {family!r} has no option {key!r}; it has: {', '.join(allowed)}")
    choices = allowed[key]
    if choices is int:
        if not value.isdecimal() or not 0 < int(value) <= 1 << 20 or int(value) % 2:
            raise FormatError(f"{family}: {key} must be an even number from 2 to {1 << 20}, got {value!r}")
        return key, int(value)
    for choice in choices:
        if value == str(choice).lower():
            return key, choice
    raise FormatError(f"{family}: {key} must be one of {', '.join(str(c).lower() for c in choices)}, got {value!r}")
