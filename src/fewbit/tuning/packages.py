"""The package of the extra `tune`."""

from __future__ import annotations

from importlib import import_module

from ..errors import ExtraError

INSTALL = "pip install 'fewbit[tune]'"

try:
    import_module("torch")
except ModuleNotFoundError as error:
    raise ExtraError(f"training needs the package {error.name}: {INSTALL}") from None
