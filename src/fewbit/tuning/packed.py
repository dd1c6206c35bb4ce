"""Products of torch tensors and packed weights, whose gradients flow through the packed weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..ops.cpu import linear, linear_backward
from ..tensor import QuantTensor


class PackedLinear(torch.autograd.Function):  # type: ignore[misc]
    """x @ w.T. Its gradient is that of x alone: packed weights stay as they are."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, threads: int | None) -> Any:
        ctx.w, ctx.threads = w, threads
        options: dict[str, Any] = {"exact": True, "threads": threads} if isinstance(w, QuantTensor) else {}
        return _to_torch(linear(_given(x, w), w, **options))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, None, None]:
        threads = ctx.threads if isinstance(ctx.w, QuantTensor) else None
        return _to_torch(linear_backward(_given(grad, ctx.w), ctx.w, threads=threads)), None, None


def packed_linear(x: Any, w: Any, threads: int | None = None) -> Any:
    """x @ w.T for a torch tensor x, differentiable in x.

    On the CPU products are made in float32. With weights on a GPU (`w.to("cuda")`) x lies there too, and is rounded as
    `fb.linear` rounds it there; gradients are not.

    Args:
        x: Tensor of (..., k) values.
        w: Packed matrix of (n, k).
        threads: Number of threads. Defaults to all usable cores.

    >>> import fewbit as fb
    >>> w = fb.quantize(np.eye(32, dtype=np.float32)[:2], "q8_0")
    >>> x = torch.ones(32, requires_grad=True)
    >>> packed_linear(x, w).sum().backward()
    >>> x.grad[:3].tolist()
    [1.0, 1.0, 0.0]
    """
    return PackedLinear.apply(x, w, threads)


def _given(x: Any, w: Any) -> Any:
    x = x.detach().contiguous()
    return x.numpy() if isinstance(w, QuantTensor) else x


def _to_torch(values: Any) -> Any:
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.from_dlpack(values)
