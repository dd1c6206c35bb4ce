"""Whether a GPU multiplies panels as it multiplies fragments: tried once before the first product that takes them.

Their kernels ran on few kinds of GPU. Where they are wrong, products are made as before there were panels.
"""

from __future__ import annotations

import warnings

import numpy as np

from ...arrays import Floats
from ...formats import get
from .products import RowSource, multiply, pack_rows
from .session import Session
from .tensor import CudaTensor, from_rows
from .values import Launcher, Rows

ROWS, WIDTH = 40, 512  # of the weights; two blocks share the width
TOKENS = 33, 128  # of the smallest panel and of the largest
TOLERANCE = 1e-3  # of the largest result; kernels that are right differ in the order of sums


def try_panels(device: Session) -> bool:
    """Whether products by panels agree with those by fragments, with a warning if not."""
    rng = np.random.default_rng(0)
    blocks = np.zeros((ROWS, WIDTH // 32), [("scale", "<f2"), ("codes", "i1", 32)])  # q8_0
    blocks["scale"] = rng.uniform(0.5, 1, blocks.shape)
    blocks["codes"] = rng.integers(-127, 128, (*blocks.shape, 32))
    rows = device.array(blocks.view(np.uint8).reshape(ROWS, -1))
    w = from_rows(device, get("q8_0"), (ROWS, WIDTH), rows.pointer)
    if all(_agrees(device, w, rng.standard_normal((tokens, WIDTH), np.float32)) for tokens in TOKENS):
        return True
    kind = "wgmma" if device.has_wgmma else "mma"
    warnings.warn(
        f"products of 33 to 256 tokens ({kind}) are wrong on this GPU ({device.arch}): slower ones are used instead. "
        "Please report this",
        stacklevel=2,
    )
    return False


def _agrees(device: Session, w: CudaTensor, x: Floats) -> bool:
    given = device.array(x)
    source = RowSource(Rows(given.pointer, WIDTH, WIDTH))
    fragments, panels = (_product(device, w, source, len(x), kind) for kind in ("fragments", "panels"))
    return bool(np.abs(panels - fragments).max() <= TOLERANCE * np.abs(fragments).max())  # not if one is NaN


def _product(device: Session, w: CudaTensor, source: RowSource, tokens: int, kind: str) -> Floats:
    run, out = Launcher(device, device.stream), device.empty((tokens, ROWS))
    device.fill(out.pointer, 0xFF, out.nbytes)
    is_invariant = kind == "fragments"  # for so many tokens
    form = pack_rows(run, source, tokens, kind, is_invariant)
    multiply(run, w, form, tokens, Rows(out.pointer, ROWS, ROWS), invariant=is_invariant)
    return out.numpy()
