"""What can go wrong, by kind. Every error of fewbit is a FewbitError; each is also the built-in kind that fits."""

from __future__ import annotations


class FewbitError(Exception):
    """Any error that fewbit raises on purpose."""


class FormatError(FewbitError, ValueError):
    """An unknown format, or one that cannot do what was asked."""


class ShapeError(FewbitError, ValueError):
    """A shape or a number of bytes that does not fit."""


class DtypeError(FewbitError, TypeError):
    """An array of a type that is not understood."""


class DataError(FewbitError, ValueError):
    """Numbers that cannot be packed: NaN or infinity."""


class LayoutError(FewbitError, BufferError):
    """Memory that cannot be used as it is: read-only, overlapping or not contiguous."""
