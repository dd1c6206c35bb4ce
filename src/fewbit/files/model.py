"""Model files: what the rest of fewbit needs of a file, whatever its kind. GGUF is one of them.

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
    """What is known of a tensor before it is read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def format(self) -> Format: ...


class ModelFile(Protocol):
    """An open file, or several, with a model: hyperparameters, weights, and what is needed for text."""

    file_bytes: int

    @property
    def maps(self) -> WeakSet[FileMap]:
        """The memory maps that the file or its tensors still use: see `check_maps`."""

    @property
    def path(self) -> Path:
        """The file, the first of several, or the folder."""

    @property
    def architecture(self) -> str:
        """What kind of model it is: the name of a module in `models`, if it can be run."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Hyperparameters, named without the architecture: plain numbers, strings, arrays."""

    @property
    def tensors(self) -> Mapping[str, QuantTensor]:
        """Weights by name, made when they are looked up."""

    @property
    def infos(self) -> Mapping[str, Info]:
        """Shape and format of each tensor."""

    def samples(self, nbytes: int) -> Iterator[bytes]:
        """What each tensor is, and some of its bytes: enough to tell one model from another."""

    def tokenizer(self) -> Mapping[str, Any]:
        """What the file says of its tokens, as it says it: `Tokenizer.from_metadata` reads it."""

    def template(self) -> str | None:
        """The source of the chat template, if there is one."""

    def forget(self, name: str) -> None:
        """Release the memory of a tensor that is not used any more; if it is, it is read again."""

    def close(self) -> None:
        """Give out no more tensors. Those that were given out stay valid."""
