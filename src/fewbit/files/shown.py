"""Values and names for error messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def first_names(names: Sequence[str], most: int = 3) -> str:
    """Names for an error, not too many.

    >>> first_names(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def short(value: object) -> str:
    """A value from a file, shortened for an error.

    >>> short("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    """
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 80 else text[:52] + "..."
