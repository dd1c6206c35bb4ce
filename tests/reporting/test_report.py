"""What a report measures, beside slow references, and its page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import PathError, RequestError
from fewbit.evaluation import calibrate
from fewbit.files.imatrix import ImportanceMatrix, SquareSums
from fewbit.formats import all_formats
from fewbit.formats.decode import read_codes, split
from fewbit.reporting.weights import code_counts, code_range, weight_figures

from ..cli.tiny import write_tiny
from ..evaluation.reference import TEXT

FORMATS = ("q8_0", "q4_0", "iq4_nl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for name in ("f32", *FORMATS):
        write_tiny(path / f"<{name}>.gguf", format=name)
    return path


@pytest.fixture(scope="module")
def whole(folder: Path) -> fb.Report:
    return fb.report([folder / f"<{name}>.gguf" for name in FORMATS], TEXT, reference=folder / "<f32>.gguf", ctx=32)


def test_errors_are_those_of_the_tensors(folder: Path, whole: fb.Report) -> None:
    base = fb.read_gguf(folder / "<f32>.gguf")
    imatrix = calibrate(folder / "<f32>.gguf", TEXT, ctx=32).imatrix
    for name, model in zip(FORMATS, whole.models, strict=True):
        file = fb.read_gguf(folder / f"<{name}>.gguf")
        assert {one.name for one in model.weights.losses} == {n for n, i in file.infos.items() if len(i.shape) > 1}
        for one in model.weights.losses:
            w, v = (f.tensors[one.name].dequantize().astype(np.float64) for f in (file, base))
            assert one.error == pytest.approx(np.linalg.norm(w - v) / np.linalg.norm(v), rel=1e-4)
            if one.name == "token_embd.weight":
                assert one.effect is None or one.effect > 0
                continue
            s = np.sqrt(imatrix[one.name].astype(np.float64))
            assert one.effect == pytest.approx(np.linalg.norm((w - v) * s) / np.linalg.norm(v * s), rel=1e-3)
        bits = 8 * sum(file.tensors[n].nbytes for n in file.infos if len(file.infos[n].shape) > 1)
        assert model.weights.bits == pytest.approx(
            bits / sum(file.tensors[one.name].size for one in model.weights.losses)
        )


def test_divergence_is_that_of_evaluate(folder: Path, whole: fb.Report) -> None:
    for name, model in zip(FORMATS, whole.models, strict=True):
        (found,) = fb.evaluate(folder / f"<{name}>.gguf", TEXT, against=folder / "<f32>.gguf", ctx=32)
        assert found.divergence is not None
        assert model.evaluation is not None
        assert model.evaluation.divergence is not None
        assert model.evaluation.divergence.mean == pytest.approx(found.divergence.mean, rel=0.02, abs=1e-4)
    kv = [one.divergence.mean for one in whole.kv if one.divergence]
    assert [one.kv for one in whole.kv] == ["q8_0", "q4_0"]
    assert 0 < kv[0] < kv[1]


def test_effects_of_experts_have_their_own_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((3, 4, 32)).astype(np.float32)
    for name, data in (("a", values), ("b", fb.quantize(values, "q4_0"))):
        fb.write_gguf(tmp_path / f"{name}.gguf", {}, {"blk.0.ffn_up_exps.weight": data})
    squares = rng.random((3, 32))
    imatrix = ImportanceMatrix({"blk.0.ffn_up_exps.weight": SquareSums(squares, np.ones(3))})
    file, base = (fb.read_gguf(tmp_path / f"{name}.gguf") for name in ("b", "a"))
    done: list[int] = []
    found = weight_figures(file, base, imatrix, lambda: done.append(1))
    change = file.tensors["blk.0.ffn_up_exps.weight"].dequantize() - values
    expected = np.sqrt(np.sum(change**2 * squares[:, None]) / np.sum(values**2 * squares[:, None]))
    assert found.losses[0].effect == pytest.approx(expected, rel=1e-5)
    assert len(done) == 1


@pytest.mark.parametrize("name", [f.name for f in all_formats().values() if f.gguf and f.codes is not None])
def test_codes_of_every_format(name: str) -> None:
    w = fb.quantize(np.random.default_rng(0).standard_normal((4, 512), np.float32), name)
    counts = code_counts(w)
    assert sum(counts.values()) == w.size
    assert set(counts) <= set(code_range(name, counts))
    fmt = w.format
    codes = read_codes(fmt, split(fmt, w.data.reshape(-1, fmt.block_bytes)), fmt.block)
    assert counts[int(codes[0, 0])] == np.count_nonzero(codes == codes[0, 0])


class Tags(HTMLParser):
    """Checks that all tags are closed, and collects them."""

    VOID = frozenset({"meta", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_and_fetches_nothing(whole: fb.Report) -> None:
    html = whole.html()
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    names = [tag for tag, _ in tags.found]
    assert "script" not in names
    assert names.count("svg") == names.count("figure") >= 8
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import", html) == []
    for section in ("Size and loss", "Loss by layer", "Weights and codes", "KV cache"):
        assert section in tags.text
    assert "<q4_0>" in tags.text  # escaped
    assert f"{whole.models[0].file_bytes / 1e6:.1f}" in tags.text
    assert "prefers-color-scheme: dark" in html
    assert "±" in tags.text


def test_files(whole: fb.Report, tmp_path: Path) -> None:
    whole.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text("utf-8") == whole.html()
    paths = whole.save_svgs(tmp_path / "charts")
    assert {path.name for path in paths} >= {"size-kl.svg", "layers-error.svg", "weights.svg", "kv-depth.svg"}
    for path in paths:
        assert ElementTree.fromstring(path.read_text("utf-8")).tag == "{http://www.w3.org/2000/svg}svg"
    with pytest.raises(PathError, match="cannot be written"):
        whole.save(tmp_path / "none" / "a.html")
    with pytest.raises(PathError, match="cannot be written"):
        whole.save_svgs(tmp_path / "a.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "charts"]


def test_weights_alone(folder: Path) -> None:
    found = fb.report([folder / "<q4_0>.gguf"], reference=folder / "<f32>.gguf")
    assert (found.models[0].evaluation, found.text_tokens, list(found.kv)) == (None, 0, [])
    html = found.html()
    assert "KV cache" not in html
    assert "perplexity" not in html
    assert "output error" not in html
    assert "codes of q4_0" in html


def test_without_a_reference(folder: Path) -> None:
    found = fb.report([folder / "<q4_0>.gguf"], TEXT, kv=[], ctx=32)
    assert found.models[0].evaluation is not None
    assert found.models[0].weights.losses == []
    html = found.html()
    assert "perplexity" in html
    assert "Loss by layer" not in html


def test_what_cannot_be_reported(folder: Path) -> None:
    with pytest.raises(RequestError, match="at least one model"):
        fb.report([])
    other = Path(__file__).parents[1] / "zoo/gpt2/model.gguf"
    with pytest.raises(RequestError, match="cannot be its reference"):
        fb.report([folder / "<q4_0>.gguf"], reference=other)
