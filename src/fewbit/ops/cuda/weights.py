"""Weights of a model in a GPU's memory: each is sent once, however many operations use it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ...arrays import Floats
from ...formats import get
from ...tensor import QuantTensor
from .fused import Fused
from .memory import DeviceArray
from .session import Session
from .stack import Stack, send_stack
from .tensor import CudaTensor
from .upload import Uploader

Progress = Callable[[int], None]  # bytes of weights that were sent


class Weights:
    """What was sent, by the arrays that it came from."""

    def __init__(self, device: Session, progress: Progress | None = None, uploader: Uploader | None = None) -> None:
        self.device = device
        self._progress, self._uploader = progress, uploader or Uploader(device)
        self._kept: dict[tuple[Any, ...], tuple[Any, Any]] = {}  # the host's arrays stay, so that no id comes twice

    def floats(self, values: Floats | None) -> int:
        """A pointer to f32 values; 0: there are none."""
        if values is None:
            return 0
        made: DeviceArray = self._once((id(values),), values, lambda: self.device.array(np.asarray(values, np.float32)))
        return made.pointer

    def tensor(self, w: QuantTensor) -> CudaTensor:
        """A matrix by itself, for tables of embeddings; a product with the same matrix shares it."""
        return self.fused([(w, None)]).tensors[0]

    def stack(self, w: QuantTensor) -> Stack:
        made: Stack = self._sent(("stack", id(w)), [w], lambda: send_stack(self.device, w, self._uploader))
        return made

    def fused(self, terms: Sequence[tuple[QuantTensor, Floats | None]], exact: Collection[int] = ()) -> Fused:
        """Matrices that take the same rows, as one product, with their biases.

        Those whose numbers are in `exact` are kept and multiplied in f32, whatever the file has.
        """
        biases = [bias for _, bias in terms]
        matrices = [self._in_f32(w) if i in exact else w for i, (w, _) in enumerate(terms)]
        key = ("fused", *map(id, matrices), *(id(bias) for bias in biases if bias is not None))
        made: Fused = self._sent(
            key, [*matrices, *biases], lambda: Fused.make(self.device, matrices, biases, self._uploader, exact)
        )
        return made

    def gated(self, gate: QuantTensor, up: QuantTensor, kind: str) -> Fused:
        key = ("gated", id(gate), id(up), kind)
        made: Fused = self._sent(key, [gate, up], lambda: Fused.gated(self.device, gate, up, kind, self._uploader))
        return made

    def _in_f32(self, w: QuantTensor) -> QuantTensor:
        if w.format.name == "f32":
            return w
        values: QuantTensor = self._once(
            ("f32", id(w)), w, lambda: QuantTensor(w.dequantize().reshape(-1).view(np.uint8), w.shape, get("f32"))
        )
        return values

    def close(self) -> None:
        """Give back what sending took, until there is more to send."""
        self._uploader.close()

    def _sent(self, key: tuple[Any, ...], parts: Sequence[Any], make: Callable[[], Any]) -> Any:
        is_new = key not in self._kept
        made = self._once(key, parts, make)
        if is_new and self._progress is not None:
            self._progress(sum(part.nbytes for part in parts if isinstance(part, QuantTensor)))
        return made

    def _once(self, key: tuple[Any, ...], parts: Any, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = parts, make()
        return self._kept[key][1]
