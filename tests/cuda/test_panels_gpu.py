"""Products of 33 to 256 tokens by panels, by warps (mma) and by warpgroups (wgmma), against the NumPy decoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fewbit.arrays import Floats
from fewbit.formats import Format, get
from fewbit.ops import cuda
from fewbit.ops.cuda import panel_check, products, shapes
from fewbit.ops.cuda.layout import tile_layout
from fewbit.ops.cuda.products import Form, empty_form, make_form, multiply
from fewbit.ops.cuda.shapes import PanelShape, panel_tiles
from fewbit.ops.cuda.values import Launcher
from fewbit.ops.numpy import ACTIVATION_FUNCTIONS

from .cases import ALL, make, ragged, relative_error
from .row_cases import open_gpu
from .test_products_gpu import Strided, fused_of, inputs, stacked

pytestmark = pytest.mark.cuda
PLANES = [fmt for fmt in ALL if tile_layout(fmt)]
TOKENS = (33, 48, 64, 65, 100, 128, 200, 256)
ERROR = 1e-3


@pytest.fixture(params=[False, True], ids=["mma", "wgmma"])
def device(request: pytest.FixtureRequest) -> Iterator[cuda.Session]:
    """A session whose products are by warps, or by warpgroups where the GPU has them."""
    session = open_gpu()
    if request.param and session.arch not in ("sm_90", "emulated"):
        pytest.skip(f"{session.arch} has no wgmma")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "has_wgmma", request.param)
        patch.setattr(session.gpu, "takes_panels", True)
        yield session


def check(device: cuda.Session, names: tuple[str, ...], sizes: tuple[int, ...], k: int, tokens: int) -> None:
    """Fused matrices of the same rows, beside float64; what is beside the results must not be written."""
    fused, values = fused_of(device, names, sizes, k)
    x, run = inputs(tokens, k), Launcher(device, device.stream)
    given, out = Strided(device, tokens, k, x), Strided(device, tokens, fused.width)
    form = make_form(run, given.rows, tokens)
    assert form.kind == "panels"
    multiply(run, fused, form, tokens, out.rows)
    found = out.numpy()
    for column, n, expected in zip(fused.offsets, fused.sizes, stacked(values, x), strict=True):
        assert relative_error(found[:, column : column + n], expected) < ERROR


@pytest.mark.parametrize("fmt", PLANES, ids=str)
def test_formats(device: cuda.Session, fmt: Format) -> None:
    (n, k), tokens = ragged(fmt), 40 if device.has_wgmma else 70
    w, values = make(fmt, n, k)
    x, out = inputs(tokens, k), device.empty((tokens, n))
    device.fill(out.pointer, 0xFF, out.nbytes)
    cuda.linear(x, cuda.to_device(w), out)
    assert relative_error(out.numpy(), x.astype(np.float64) @ values.T) < ERROR


@pytest.mark.parametrize("tokens", TOKENS)
def test_tokens(device: cuda.Session, tokens: int) -> None:
    check(device, ("q4_k",), (137,), 2304, tokens)


@pytest.mark.parametrize(("n", "k"), [(1, 256), (16, 128), (300, 1024)])
@pytest.mark.parametrize("tokens", [40, 130])
def test_sizes(device: cuda.Session, n: int, k: int, tokens: int) -> None:
    check(device, ("q8_0",), (n,), k, tokens)


@pytest.mark.parametrize("names", [("q4_k", "q4_k", "q6_k"), ("q6_k", "q8_0", "q4_k"), ("q4_k", "iq4_xs", "iq2_xxs")])
def test_matrices_of_the_same_rows(device: cuda.Session, names: tuple[str, ...]) -> None:
    fused, values = fused_of(device, names, (137, 37, 24))
    for tokens in (33, 160):
        x, run = inputs(tokens), Launcher(device, device.stream)
        given, out = Strided(device, tokens, 2304, x), Strided(device, tokens, fused.width)
        multiply(run, fused, make_form(run, given.rows, tokens), tokens, out.rows)
        found = out.numpy()
        for column, n, expected in zip(fused.offsets, fused.sizes, stacked(values, x), strict=True):
            assert relative_error(found[:, column : column + n], expected) < 6e-3  # rows as in files: bf16


@pytest.mark.parametrize(("names", "kind"), [(("q4_k", "q4_k"), "silu"), (("q6_k", "q6_k"), "gelu"),
                                             (("q4_k", "q6_k"), "silu")])  # fmt: skip
def test_gates(device: cuda.Session, names: tuple[str, ...], kind: str) -> None:
    fused, (gate, up) = fused_of(device, names, (133, 133), gate=kind)
    for tokens in (48, 200):
        x, run = inputs(tokens) * np.float32(0.2), Launcher(device, device.stream)
        given, out = Strided(device, tokens, 2304, x), Strided(device, tokens, fused.width)
        multiply(run, fused, make_form(run, given.rows, tokens), tokens, out.rows)
        wide = x.astype(np.float64)
        expected = ACTIVATION_FUNCTIONS[kind](wide @ gate.T) * (wide @ up.T)
        assert relative_error(out.numpy(), expected) < 2 * ERROR


@pytest.mark.parametrize("tokens", [33, 100, 200])
@pytest.mark.parametrize("residual", ["none", "other", "itself"])
def test_bias_and_residual(device: cuda.Session, tokens: int, residual: str) -> None:
    w, values = make(get("q4_k"), 141, 2304)
    sent, x, add = cuda.to_device(w), inputs(tokens), inputs(tokens, 141) * np.float32(50)
    bias = inputs(1, 141)[0] * np.float32(50)
    run, given, other = (
        Launcher(device, device.stream),
        Strided(device, tokens, 2304, x),
        Strided(device, tokens, 141, add),
    )
    out = other if residual == "itself" else Strided(device, tokens, 141)
    form, biases = make_form(run, given.rows, tokens), device.array(bias)
    added = None if residual == "none" else other.rows
    multiply(run, sent, form, tokens, out.rows, bias=biases.pointer, residual=added)
    found = out.numpy() - bias - (0 if residual == "none" else add)
    assert relative_error(found, x.astype(np.float64) @ values.T) < ERROR + 1e-4


@pytest.mark.parametrize("tokens", [40, 150])
@pytest.mark.parametrize(("share", "cluster"), [(1, False), (4, False), (8, True), (7, True)])
def test_ways_to_share_k(
    device: cuda.Session, monkeypatch: pytest.MonkeyPatch, tokens: int, share: int, cluster: bool
) -> None:
    """The same bits every time, however many blocks share it."""
    tiles = panel_tiles(tokens)[1]
    shape = PanelShape(8, tiles, 2, share, cluster, device.has_wgmma)
    monkeypatch.setattr(products, "panel_shape", lambda *_: shape)
    fused, values = fused_of(device, ("q4_k", "q6_k"), (300, 40))
    x, run = inputs(tokens), Launcher(device, device.stream)
    given, out = Strided(device, tokens, 2304, x), Strided(device, tokens, fused.width)
    form, found = make_form(run, given.rows, tokens), []
    for _ in range(2):
        multiply(run, fused, form, tokens, out.rows)
        found.append(out.numpy().copy())
    for column, n, expected in zip(fused.offsets, fused.sizes, stacked(values, x), strict=True):
        assert relative_error(found[0][:, column : column + n], expected) < ERROR
    assert np.array_equal(found[0], found[1], equal_nan=True)


def put_panels(device: cuda.Session, form: Form, x: Floats) -> None:
    """As attention writes them: what is no value of a token stays as it was."""
    (tokens, width), columns, panels = x.shape, -(-x.shape[1] // 128), panel_tiles(len(x))[0]
    tiles = form.tiles // panels
    held = np.empty((columns, panels, 4, 4, tiles, 8, 4, 2), np.float16)  # ..., s, c, tile, token, granule, value
    device.download(form.pointer, held)
    rows = held.transpose(1, 4, 5, 0, 6, 2, 3, 7).reshape(form.tiles * 8, columns * 128)
    rows[:tokens, :width] = x
    placed = rows.reshape(panels, tiles, 8, columns, 4, 4, 4, 2).transpose(3, 0, 5, 6, 1, 2, 4, 7)
    device.upload(placed, form.pointer)


def test_panels_without_scales(device: cuda.Session) -> None:
    w, values = make(get("q4_k"), 141, 2304)
    sent = cuda.to_device(w)
    for tokens in (60, 50, 200):
        run, out, x = Launcher(device, device.stream), Strided(device, tokens, 141), inputs(tokens)
        form = empty_form(run, 2304, tokens)
        assert form
        assert (form.kind, form.scales) == ("panels", 0)
        put_panels(device, form, x)
        multiply(run, sent, form, tokens, out.rows)
        assert relative_error(out.numpy(), x.astype(np.float64) @ values.T) < ERROR


def test_nan_spoils_its_row_and_no_other(device: cuda.Session) -> None:
    w, _ = make(get("q4_k"), 24, 512)
    sent, x = cuda.to_device(w), inputs(70, 512)
    x[35, 37] = np.nan
    is_nan = np.isnan(cuda.linear(x, sent).numpy())
    assert is_nan[35].all()
    assert is_nan.sum() == 24


# Whether they are right here


def test_panels_are_tried(device: cuda.Session) -> None:
    assert panel_check.try_panels(device)


@pytest.mark.parametrize("wrong", ["unwritten", "slightly"])
@pytest.mark.parametrize("tokens", panel_check.TOKENS)
def test_wrong_panels_are_not_taken(
    device: cuda.Session, monkeypatch: pytest.MonkeyPatch, wrong: str, tokens: int
) -> None:
    """One result of the smallest or the largest panel is wrong: a warning names it, and others are used."""

    def spoilt(run: Launcher, w: Any, form: Form, count: int, out: Any, **options: Any) -> None:
        multiply(run, w, form, count, out, **options)
        if form.kind == "panels" and count == tokens:
            place = out.pointer + 4 * (count * panel_check.ROWS - 1)
            if wrong == "unwritten":
                device.fill(place, 0xFF, 4)
            else:
                device.upload(device.download(place, np.zeros(1, np.float32)) * 0.9 + 10, place)

    monkeypatch.setattr(panel_check, "multiply", spoilt)
    kind = "wgmma" if device.has_wgmma else "mma"
    with pytest.warns(UserWarning, match=rf"33 to 256 tokens \({kind}\) are wrong on this GPU \({device.arch}\)"):
        assert not panel_check.try_panels(device)
    monkeypatch.setattr(device.gpu, "takes_panels", False)
    run, x = Launcher(device, device.stream), Strided(device, 70, 256, inputs(70, 256))
    assert make_form(run, x.rows, 70).kind == "rows16"
    assert make_form(run, x.rows, shapes.MAX_SHARED).kind == "fragments"
