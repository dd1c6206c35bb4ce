"""Moments of inputs beside those that a slow walk over the graph finds."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit import devices
from fewbit.devices.batch import Row
from fewbit.errors import OutOfMemory, RequestError
from fewbit.evaluation import calibration
from fewbit.load_options import LoadOptions
from fewbit.loading import load_weights, place
from fewbit.models import open_model
from fewbit.ops import numpy as ops
from fewbit.ops.experts import route

from .reference import EXACT, TEXT, models

CTX = 32
ZOO = Path(__file__).parents[1] / "zoo"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return models(tmp_path_factory.mktemp("models"))


class Seen:
    """Inputs of matrices, as the NumPy device multiplies them: rows by the name of the tensor and the expert."""

    def __init__(self, path: Path, windows: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
        device = devices.get("numpy")
        model = load_weights(open_model(path), device)
        self.names = {id(w): name for name, w in model.matrices}
        for name in ("linear", "linear_heads", "experts"):
            monkeypatch.setitem(ops.FUNCTIONS, name, self._watch(ops.FUNCTIONS[name], getattr(self, name)))
        loaded = place(model, device, "f16", 512, 512)
        for window in windows:
            self.seen: set[tuple[str, int]] = set()
            loaded.forward([Row(loaded.cache.new(), window, len(window))])
        monkeypatch.undo()

    def _watch(self, function: Any, note: Any) -> Any:
        def watched(step: Any, *inputs: Any, **attributes: Any) -> Any:
            note(*inputs, **attributes)
            return function(step, *inputs, **attributes)

        return watched

    def add(self, w: Any, matrix: int, x: Any) -> None:
        if w is not None and id(w) in self.names and (self.names[id(w)], matrix) not in self.seen:
            self.seen.add((self.names[id(w)], matrix))  # parts of a fused tensor have the same inputs
            self.rows[self.names[id(w)], matrix].append(x.astype(np.float64))

    def linear(self, x: Any, *, w: Any, **_: Any) -> None:
        self.add(w, 0, x)

    def linear_heads(self, x: Any, *, w: Any) -> None:
        for head, rows in enumerate(x.reshape(len(x), w.shape[0], -1).transpose(1, 0, 2)):
            self.add(w, head, rows)

    def experts(self, x: Any, scores: Any, **a: Any) -> None:
        chosen, _ = route(scores, a["routing"])
        for expert in range(a["up"].shape[0]):
            rows = x[[expert in row for row in chosen.tolist()]]
            if not len(rows):
                continue
            parts = {key: rows @ a[key].dequantize()[expert].T for key in ("gate", "up") if a[key] is not None}
            for key, y in list(parts.items()):
                parts[key] = y + (0 if a[f"{key}_bias"] is None else a[f"{key}_bias"][expert])
                self.add(a[key], expert, rows)
            h = ops.gate(None, parts["gate"], parts["up"], kind=a["kind"]) if "gate" in parts else None  # type: ignore[arg-type]
            self.add(a["down"], expert, ops.activate(None, parts["up"], kind=a["kind"]) if h is None else h)  # type: ignore[arg-type]

    def tensors(self) -> dict[str, dict[int, Any]]:
        found: defaultdict[str, dict[int, Any]] = defaultdict(dict)
        for (name, matrix), rows in self.rows.items():
            found[name][matrix] = np.concatenate(rows)
        return found


def windows_of(path: Path) -> list[list[int]]:
    tokens = fb.Tokenizer.from_gguf(path).encode(TEXT, add_special=True)
    return [tokens[start : start + CTX] for start in range(0, len(tokens) - CTX + 1, CTX)]


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_moments_are_those_of_a_slow_walk(
    pair: tuple[Path, Path], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, _ = pair
    windows = windows_of(base)
    expected = Seen(base, windows, monkeypatch).tensors()
    found = fb.calibrate(base, TEXT, ctx=CTX, hessian=True, device=device, **EXACT)
    assert set(found.imatrix) == set(expected) == set(found.hessians)
    assert "output.weight" in found.imatrix
    assert (found.imatrix.chunk_count, found.imatrix.chunk_size) == (len(windows), CTX)
    for name, rows in expected.items():
        assert found.imatrix.entries[name].counts.tolist() == [CTX * len(windows)]
        np.testing.assert_allclose(found.imatrix[name], np.mean(rows[0] ** 2, axis=0), rtol=2e-3, atol=1e-6)
        np.testing.assert_allclose(found.hessians[name], rows[0].T @ rows[0], rtol=1e-2, atol=0.05)
    assert found.hessians["blk.0.attn_q.weight"] is found.hessians["blk.0.attn_v.weight"]


EXPERT_MODELS = [
    "mixtral", "gpt-oss", "deepseek2", "qwen3moe", "granitehybrid", "gemma4-moe", "phi3", "gemma3", "llama4",
    "nemotron_h_moe",
]  # fmt: skip


@pytest.mark.parametrize("name", EXPERT_MODELS)
@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_experts_and_heads_and_fused_tensors(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ZOO / name / "model.gguf"
    tokens = [int(token) for token in np.load(ZOO / name / "golden.npz")["tokens"]]
    found = fb.calibrate(path, tokens, ctx=len(tokens), device=device, **EXACT).imatrix
    windows = [[*tokens]]
    bos = fb.Tokenizer.from_gguf(path)
    if bos.encode("", add_special=True)[:1] == [bos.bos_id]:
        assert bos.bos_id is not None
        windows[0][0] = bos.bos_id
    expected = Seen(path, windows, monkeypatch).tensors()
    assert set(found) == set(expected)
    for tensor, matrices in expected.items():
        entry = found.entries[tensor]
        assert {n for n, count in enumerate(entry.counts) if count} == set(matrices)
        for matrix, rows in matrices.items():
            assert entry.counts[matrix] == len(rows)
            np.testing.assert_allclose(entry.sums[matrix], np.sum(rows**2, axis=0), rtol=5e-3, atol=1e-4)


def test_files(pair: tuple[Path, Path], tmp_path: Path) -> None:
    found = fb.calibrate(pair[0], TEXT, ctx=CTX, hessian=True)
    found.save(tmp_path / "imatrix.gguf")
    again = fb.read_imatrix(tmp_path / "imatrix.gguf")
    assert set(again) == set(found.imatrix)
    for name, values in found.imatrix.items():
        np.testing.assert_allclose(again[name], values, rtol=1e-6)
    hessians = fb.read_hessians(tmp_path / "imatrix.hessian.gguf")
    assert set(hessians) == set(found.hessians)
    for name, values in found.hessians.items():
        np.testing.assert_array_equal(hessians[name], values)
    assert len(set(hessians.places.values())) < len(hessians)  # tensors with the same inputs share one


def test_a_model_without_taps_is_as_before(pair: tuple[Path, Path]) -> None:
    before = fb.evaluate(pair[0], TEXT, ctx=CTX)[0].scores.logprobs
    fb.calibrate(pair[0], TEXT, ctx=CTX)
    np.testing.assert_array_equal(fb.evaluate(pair[0], TEXT, ctx=CTX)[0].scores.logprobs, before)


def test_windows_in_several_steps_give_the_same(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fb.calibrate(pair[0], TEXT * 2, ctx=150, **EXACT).imatrix
    monkeypatch.setattr(calibration, "TAPS_BYTES", 1)
    parts = fb.calibrate(pair[0], TEXT * 2, ctx=150, **EXACT).imatrix
    for name, values in whole.items():
        np.testing.assert_allclose(parts[name], values, rtol=2e-3, atol=1e-6)


def test_what_cannot_be_calibrated(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="encoder"):
        fb.calibrate(ZOO / "bert/model.gguf", [1, 2, 3])
    with pytest.raises(RequestError, match="at least two"):
        fb.calibrate(pair[0], "a")
    monkeypatch.setattr(calibration, "available_memory", lambda: 1000)
    with pytest.raises(OutOfMemory, match=r"the Hessians of base take .* leave hessian out"):
        fb.calibrate(pair[0], TEXT, ctx=CTX, hessian=True)


def test_options_are_those_of_models(pair: tuple[Path, Path]) -> None:
    assert LoadOptions().kv == "f16"
    with pytest.raises(fb.FewbitError):
        fb.calibrate(pair[0], TEXT, kv="nothing")
