"""Model files: the interface of GGUF files, safetensors folders and others.

To add a kind, write a class with these names and let `fewbit.models.open_model` choose it. Hyperparameters and tensors
have the names of GGUF (`block_count`, `blk.0.attn_q.weight`): a file with names of its own translates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

from ..formats import Format
from ..tensor import QuantTensor
from .maps import FileMap


class Info(Protocol):
    """Shape and format of a tensor that is not read yet."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def format(self) -> Format: ...


class ModelFile(Protocol):
    """An open model of one file or several: hyperparameters, weights, tokenizer and chat template."""

    file_bytes: int

    @property
    def maps(self) -> WeakSet[FileMap]:
        """The memory maps that the file or its tensors still use: see `check_maps`."""

    @property
    def path(self) -> Path:
        """The file, the first of several, or the folder."""

    @property
    def architecture(self) -> str:
        """The name of a module in `models`, if the model is supported."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Hyperparameters, named without the architecture: plain numbers, strings, arrays."""

    @property
    def tensors(self) -> Mapping[str, QuantTensor]:
        """Weights by name, created on demand."""

    @property
    def infos(self) -> Mapping[str, Info]:
        """Shape and format of each tensor."""

    def samples(self, nbytes: int) -> Iterator[bytes]:
        """Name, format, shape and some bytes of each tensor: a fingerprint of the model."""

    def tokenizer(self) -> Mapping[str, Any]:
        """The metadata of the tokenizer, for `Tokenizer.from_metadata`."""

    def template(self) -> str | None:
        """The source of the chat template, if there is one."""

    def forget(self, name: str) -> None:
        """Release the memory of a tensor. If it is used again, it is read from the file again."""

    def close(self) -> None:
        """Close the files. Tensors that are in use stay valid."""
