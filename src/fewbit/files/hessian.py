"""Hessians: sums of products of all pairs of inputs of a matrix, in GGUF files.

A file has an f32 tensor for each array, (columns, columns) or (experts, columns, columns). Matrices with the same
inputs share one: `hessian.names` lists the matrices, and `hessian.tensors` the tensor of each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np

from ..arrays import Floats
from ..errors import FileError
from .gguf import GGUF, StringArray, read_gguf, write_gguf
from .shown import short

KIND = "hessian"  # general.type


def hessian_path(path: str | PathLike[str]) -> Path:
    """Where the Hessians of an importance matrix are.

    >>> hessian_path("a/imatrix.gguf").as_posix()
    'a/imatrix.hessian.gguf'
    """
    given = Path(path)
    return given.with_name(f"{given.stem}.hessian.gguf")


@dataclass(frozen=True, eq=False)
class Hessians(Mapping[str, Floats]):
    """Hessians of a file by the name of the matrix, each read when it is asked for.

    Args:
        path: The file.
        places: The tensor of each matrix.
        file: The open file.
    """

    path: Path
    places: Mapping[str, str]
    file: GGUF = field(repr=False)

    def __getitem__(self, name: str) -> Floats:
        values = self.file.tensors[self.places[name]].dequantize()
        self.file.forget(self.places[name])
        if not np.isfinite(values).all():
            raise FileError(f"{self.path}: the Hessian of {short(name)} has values that are not finite")
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def write_hessians(path: str | PathLike[str], hessians: Mapping[str, Floats]) -> None:
    """Write Hessians. The file appears under its name when it is complete.

    Args:
        path: The file.
        hessians: Arrays by the name of the matrix; one that several names share is written once.
    """
    tensors: dict[str, Floats] = {}
    first: dict[int, str] = {}
    for name, values in hessians.items():
        if first.setdefault(id(values), name) == name:
            tensors[name] = values
    places = [first[id(values)] for values in hessians.values()]
    metadata = {"general.type": KIND, "hessian.names": list(hessians), "hessian.tensors": places}
    write_gguf(path, metadata, tensors)


def read_hessians(path: str | PathLike[str]) -> Hessians:
    """Open the Hessians that `calibrate` wrote.

    Args:
        path: The file, such as imatrix.hessian.gguf.
    """
    file = read_gguf(path)
    names, places = (file.metadata.get(f"hessian.{key}") for key in ("names", "tensors"))
    if file.metadata.get("general.type") != KIND or not all(isinstance(one, StringArray) for one in (names, places)):
        raise FileError(f"{file.path}: no Hessians; `fewbit calibrate --hessian` writes them")
    found = dict(zip(map(str, names or ()), map(str, places or ()), strict=False))
    for name, place in found.items():
        if not _is_square(file, place):
            raise FileError(f"{file.path}: the Hessian of {short(name)} is missing, or not a square of f32 values")
    return Hessians(file.path, found, file)


def _is_square(file: GGUF, name: str) -> bool:
    """Whether a tensor is there, f32, and a square matrix or a stack of them."""
    info = file.infos.get(name)
    return info is not None and info.format.name == "f32" and info.shape[-2:] == info.shape[-1:] * 2
