"""`fewbit plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main

from ..sizing.test_simulation import FIGURES
from .tiny import write_tiny


@pytest.fixture
def figures(tmp_path: Path) -> str:
    FIGURES.save(tmp_path / "figures.json")
    return str(tmp_path / "figures.json")


def plan(*args: str) -> Result:
    return CliRunner().invoke(
        main, ["plan", "model.gguf", "--prompt-tokens", "20-30", "--output-tokens", "5", "-q", *args]
    )


def test_what_clients_get_is_printed(figures: str) -> None:
    found = plan("--figures", figures, "--clients", "40", "--replicas", "2", "--cost-per-hour", "3")
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("40 clients, 2 replicas: ")
    for text in ("first token", "between tokens", "whole answer", "busy ", "cost 6.00 an hour"):
        assert text in found.stdout


def test_json_and_seeds(figures: str) -> None:
    args = ("--figures", figures, "--clients", "20", "--json")
    one, again, other = plan(*args), plan(*args), plan(*args, "--seed", "1")
    assert one.stdout == again.stdout != other.stdout
    facts = json.loads(one.stdout)
    assert facts["replicas"] == 1
    assert facts["cost_per_hour"] is None
    assert facts["total"]["p50"] > facts["first_token"]["p50"] > 0


def test_the_fewest_replicas_for_a_target(figures: str) -> None:
    found = {}
    for seconds in (60, 100, 10_000):
        args = ("--figures", figures, "--clients", "60", "--target-p95", str(seconds), "--json")
        found[seconds] = json.loads(plan(*args).stdout)
    assert found[60]["replicas"] > found[100]["replicas"] > found[10_000]["replicas"] == 1
    for seconds, facts in found.items():
        assert facts["total"]["p95"] <= seconds
    first = plan("--figures", figures, "--clients", "60", "--target-first-p95", "20", "--json")
    assert json.loads(first.stdout)["first_token"]["p95"] <= 20


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--prompt-tokens", "x"], "'x' is not like 512 or 100-900"),
        (["--prompt-tokens", "9-3"], "prompt_tokens must be a span"),
        (["--prompt-tokens", "5000"], "does not fit into the cache"),
        (["--shared-tokens", "50"], "shared_tokens must be below the shortest prompt"),
        (["--target-p95", "0.001"], "no number of replicas is so quick"),
        (["--clients", "0"], "clients"),
    ],
)
def test_wrong_options_are_one_sentence(figures: str, args: list[str], reason: str) -> None:
    found = plan("--figures", figures, "--clients", "4", *args)
    assert found.exit_code != 0
    assert reason in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_model_is_measured_once(tmp_path: Path) -> None:
    model, path = str(write_tiny(tmp_path / "tiny.gguf")), tmp_path / "new.json"
    args = ["plan", model, "--clients", "3", "--prompt-tokens", "20", "--figures", str(path), "--ctx", "256", "-q"]
    first = CliRunner().invoke(main, [*args, "--threads", "1", "--max-seqs", "2"])
    assert first.exit_code == 0, first.output
    before = path.read_bytes()
    assert CliRunner().invoke(main, args).stdout == first.stdout
    assert path.read_bytes() == before
