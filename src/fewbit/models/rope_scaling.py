"""A model file whose positions are stretched, so that it takes longer sequences than it was made for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakSet

from ..errors import FileError, RequestError
from ..files.maps import FileMap
from ..files.model import Info, ModelFile
from ..tensor import QuantTensor

KINDS = ("linear", "dynamic", "yarn")
MAX_FACTOR = 1024.0


def read_scaling(text: str) -> tuple[str, float]:
    """The kind and the factor of an option.

    >>> read_scaling("yarn:4")
    ('yarn', 4.0)
    >>> read_scaling("yarn")
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: rope_scaling must be a kind and a factor such as "yarn:4", got 'yarn'
    """
    kind, _, given = text.partition(":") if isinstance(text, str) else ("", "", "")
    try:
        factor = float(given)
    except ValueError:
        factor = math.nan
    if not 1 <= factor <= MAX_FACTOR:
        raise RequestError(f'rope_scaling must be a kind and a factor such as "yarn:4", got {text!r}')
    if kind not in KINDS:
        raise RequestError(f"there is no rope_scaling {kind!r}; there are: {', '.join(KINDS)}")
    return kind, factor


class StretchedFile:
    """A model file with another scaling of rope; all else is as in the file.

    Args:
        file: The file.
        kind: "linear", "dynamic" (NTK) or "yarn".
        factor: How many times longer sequences get.
    """

    def __init__(self, file: ModelFile, kind: str, factor: float) -> None:
        self._file, self._kind, self._factor = file, kind, factor
        self.file_bytes = file.file_bytes
        if not any(key.startswith("rope.") for key in file.config):
            raise FileError(f"{file.path}: the model has no rotary positions, rope_scaling does nothing for it")
        if "rope_freqs.weight" in file.tensors or "rope_factors_long.weight" in file.tensors:
            raise FileError(f"{file.path}: the model has factors for long contexts of its own; leave rope_scaling out")

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Hyperparameters, with the new scaling and the longer context."""
        given = self._file.config
        made_for = given.get("rope.scaling.original_context_length", given.get("context_length"))
        if isinstance(made_for, bool) or not isinstance(made_for, int):
            raise FileError(f"{self.path}: context_length must be a whole number, it is {made_for!r}")
        kept = {key: value for key, value in given.items() if not key.startswith(("rope.scaling.", "rope.scale_"))}
        return kept | {
            "context_length": int(made_for * self._factor),
            "rope.scaling.type": self._kind,
            "rope.scaling.factor": self._factor,
            "rope.scaling.original_context_length": made_for,
        }

    @property
    def maps(self) -> WeakSet[FileMap]:
        return self._file.maps

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def architecture(self) -> str:
        return self._file.architecture

    @property
    def tensors(self) -> Mapping[str, QuantTensor]:
        return self._file.tensors

    @property
    def infos(self) -> Mapping[str, Info]:
        return self._file.infos

    def samples(self, nbytes: int) -> Iterator[bytes]:
        return self._file.samples(nbytes)

    def tokenizer(self) -> Mapping[str, Any]:
        return self._file.tokenizer()

    def template(self) -> str | None:
        return self._file.template()

    def forget(self, name: str) -> None:
        self._file.forget(name)

    def close(self) -> None:
        self._file.close()


def stretched(file: ModelFile, scaling: str | None) -> ModelFile:
    """The file, with the scaling of an option if there is one."""
    return file if scaling is None else StretchedFile(file, *read_scaling(scaling))
