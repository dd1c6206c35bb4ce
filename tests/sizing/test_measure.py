"""Figures of a replica: what is measured, and files with them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import ArgumentError, PathError, RequestError
from fewbit.llm import LLM
from fewbit.sizing import ClientLoad, make_plan, read_figures
from fewbit.sizing.figures import interpolated
from fewbit.sizing.measure import measure

from ..cli.tiny import write_tiny
from .test_simulation import FIGURES


def test_a_model_is_measured(tmp_path: Path) -> None:
    with LLM(write_tiny(tmp_path / "tiny.gguf"), ctx=2048, threads=1, max_seqs=6) as llm:
        found = measure(llm, rounds=3)
        stats, cache = llm.engine.stats(), llm.engine.cache.stats()
        assert (stats.active, stats.waiting, cache.used) == (0, 0, 0)
        assert found.pages == cache.total
        assert llm.generate("after", max_tokens=3).generated_tokens == 3  # type: ignore[union-attr]
    assert [count for count, _ in found.decode] == [1, 2, 4, 6]
    assert [count for count, _ in found.prefill] == [1 << i for i in range(10)]
    assert (found.max_seqs, found.max_batched_tokens, found.model) == (6, 512, "tiny")
    assert make_plan(found, ClientLoad(20), 2).tokens_per_second > 0


def test_a_context_may_be_too_short(tmp_path: Path) -> None:
    with LLM(write_tiny(tmp_path / "tiny.gguf"), ctx=32, threads=1) as llm, pytest.raises(RequestError, match="--ctx"):
        measure(llm)


def test_figures_are_kept(tmp_path: Path) -> None:
    FIGURES.save(tmp_path / "a.json")
    assert read_figures(tmp_path / "a.json") == FIGURES
    with pytest.raises(PathError, match="No such file"):
        read_figures(tmp_path / "b.json")


@pytest.mark.parametrize(
    "change",
    [
        {"decode": []}, {"decode": [[0, 1.0]]}, {"prefill": [[1, -1.0]]}, {"prefill": 5}, {"decode": [[1]]},
        {"max_seqs": 0}, {"page_tokens": 0}, {"other": 1}, {"decode": None},
    ],
)  # fmt: skip
def test_wrong_figures_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**asdict(FIGURES), **change}))
    with pytest.raises(ArgumentError):
        read_figures(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", "null", '"x"'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ArgumentError, match="has no figures"):
        read_figures(tmp_path / "a.json")


@given(st.dictionaries(st.integers(1, 60), st.floats(0.001, 10), min_size=1), st.integers(1, 80))
def test_points_are_on_the_lines(points: dict[int, float], most: int) -> None:
    found = interpolated([*points.items()], most)
    assert len(found) == most + 1
    assert found[0] == 0.0
    assert all(seconds > 0 for seconds in found[1:])
    for count, seconds in points.items():
        if count <= most:
            assert found[count] == pytest.approx(seconds)


@pytest.mark.parametrize(
    "change",
    [
        {"clients": 0}, {"prompt_tokens": (0, 5)}, {"output_tokens": (5, 4)}, {"shared_tokens": 512},
        {"think_seconds": -1.0}, {"think_seconds": float("nan")}, {"requests": 0}, {"groups": 0},
    ],
)  # fmt: skip
def test_wrong_loads_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        ClientLoad(**{"clients": 1, **change})


def test_requests_must_fit() -> None:
    with pytest.raises(ArgumentError, match="does not fit into the cache of 1600 tokens"):
        make_plan(FIGURES, ClientLoad(1, (1500, 1500), (100, 100)), 1)
    with pytest.raises(ArgumentError, match="replicas"):
        make_plan(FIGURES, ClientLoad(1), 0)
