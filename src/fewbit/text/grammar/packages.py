"""The packages of the extra `grammar`. They are imported where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import ExtraError

INSTALL = "pip install 'fewbit[grammar]'"


@contextmanager
def grammar_extra() -> Iterator[None]:
    """Import packages of the extra inside.

    >>> with grammar_extra():
    ...     import no_such_package
    Traceback (most recent call last):
    fewbit.errors.ExtraError: grammars and schemas need the package no_such_package: pip install 'fewbit[grammar]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ExtraError(f"grammars and schemas need the package {error.name}: {INSTALL}") from None
