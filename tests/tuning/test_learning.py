"""Learning from votes on a tiny model: better versions are used, worse ones are not, earlier ones can be used again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import fewbit as fb
from fewbit.cli import main
from fewbit.files.adapter_versions import AdapterVersions
from fewbit.files.feedback import FeedbackStore
from fewbit.tuning import tune_from_feedback

from ..cli.tiny import write_tiny

OPTIONS = {"rank": 4, "epochs": 4, "batch": 4, "learning_rate": 1e-2, "threads": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "model.gguf", hidden=32, feed_forward=64)


def votes(path: Path, likes_short: bool = True, count: int = 20) -> Path:
    """Two answers to each question; one of them is good."""
    store = FeedbackStore(path)
    for number in range(count):
        messages = [{"role": "user", "content": f"q{number}"}]
        for place, text in enumerate(("a" * 3, "a" * 12)):
            store.keep(f"id{number}", place, "tiny", messages, text)
            store.rate(f"id{number}", place, "good" if (place == 0) == likes_short else "bad")
    store.close()
    return path


def test_a_better_version_is_used_and_a_worse_one_is_not(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "adapters"
    first = tune_from_feedback(model, votes(tmp_path / "votes.db"), out, **OPTIONS)
    assert (first.name, first.votes, first.is_better) == ("v1", 40, True)
    assert first.previous_loss == pytest.approx(0.6931, abs=1e-3)
    assert first.loss < 0.5
    second = tune_from_feedback(model, tmp_path / "votes.db", out, **{**OPTIONS, "epochs": 1, "learning_rate": 1e-6})
    assert not second.is_better
    assert second.loss > second.previous_loss == pytest.approx(first.loss)
    versions = AdapterVersions(out)
    assert [one.name for one in versions.versions] == ["v1", "v2"]
    assert versions.current == "v1"
    assert versions.current_path == out / "v1"
    assert (out / "v2" / "adapter_model.safetensors").exists()


def test_versions_are_listed_and_rolled_back(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "adapters"
    feedback = votes(tmp_path / "votes.db")
    args = ["tune", str(model), "--from-feedback", str(feedback), "-o", str(out), "--rank", "4", "--epochs", "2"]
    done = CliRunner().invoke(main, [*args, "--learning-rate", "1e-2", "-t", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["is_better"] is True
    listed = CliRunner().invoke(main, ["adapters", str(out)])
    assert "v1" in listed.stdout
    back = CliRunner().invoke(main, ["adapters", str(out), "--use", "none", "--json"])
    assert json.loads(back.stdout)["current"] is None
    assert AdapterVersions(out).current is None
    assert (
        json.loads(CliRunner().invoke(main, ["adapters", str(out), "--use", "v1", "--json"]).stdout)["current"] == "v1"
    )
    wrong = CliRunner().invoke(main, ["adapters", str(out), "--use", "v9"])
    assert "there is no version 'v9'" in wrong.stderr


def test_corrections_and_single_votes_are_learned(model: Path, tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "votes.db")
    for number in range(24):
        store.keep(f"id{number}", 0, "tiny", [{"role": "user", "content": f"q{number}"}], "b" * 6)
        if number % 3 == 0:
            store.rate(f"id{number}", 0, "corrected", "zz")
        else:
            store.rate(f"id{number}", 0, "bad")
    store.close()
    version = tune_from_feedback(model, tmp_path / "votes.db", tmp_path / "out", **OPTIONS)
    assert version.is_better
    assert version.loss < version.previous_loss


def test_too_few_votes(model: Path, tmp_path: Path) -> None:
    with pytest.raises(fb.RequestError, match="4 rated answers; at least 20"):
        tune_from_feedback(model, votes(tmp_path / "votes.db", count=2), tmp_path / "out")


def test_wrong_indexes(tmp_path: Path) -> None:
    (tmp_path / "versions.json").write_text('{"versions": [{"name": "v1"}]}')
    with pytest.raises(fb.FileError, match="not a list of adapter versions"):
        AdapterVersions(tmp_path)
