"""Training on a tiny model: it learns, a stopped run goes on with the same numbers, steps are packed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fewbit as fb
from fewbit.models import open_model
from fewbit.tuning import TrainingOptions, tune
from fewbit.tuning.lora import Lora, choose_modules
from fewbit.tuning.model import TokenizedExample, TrainableModel
from fewbit.tuning.samples import PairSample, TextSample, VoteSample, packed
from fewbit.tuning.trainer import Trainer

from ..cli.tiny import write_tiny

OPTIONS = TrainingOptions(rank=8, learning_rate=2e-2, epochs=3, batch=4, step_tokens=60, checkpoint_steps=2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "model.gguf", hidden=32, feed_forward=64)


@pytest.fixture(scope="module")
def model(path: Path) -> TrainableModel:
    return TrainableModel(open_model(path), threads=1)


def examples(count: int = 24) -> list[TokenizedExample]:
    """A letter, and the same letter often."""
    rng = random.Random(0)
    letters = [rng.randrange(65, 75) for _ in range(count)]
    return [TokenizedExample([letter] * rng.randrange(5, 12), [False] + [True] * 11) for letter in letters]


def texts(count: int = 24) -> list[TextSample]:
    return [TextSample(TokenizedExample(e.tokens, e.learned[: len(e.tokens)])) for e in examples(count)]


def trainer(model: TrainableModel, folder: Path | None = None, **changes: Any) -> Trainer:
    options = replace(OPTIONS, **changes)
    lora = Lora(model.modules, options.rank, options.alpha, options.seed)
    samples = texts()
    return Trainer(model, lora, samples[4:], samples[:4], options, folder)


def test_it_learns(model: TrainableModel) -> None:
    curve = trainer(model).train()
    assert curve.losses[-1] < 0.5 * curve.losses[0]
    assert curve.held_out[-1][1] < 0.7 * curve.held_out[0][1]
    assert [step for step, _ in curve.held_out] == [0, 2, 4, 6, 8, 10, 12, 14, 15]


def test_parts_of_a_batch_add_up(model: TrainableModel) -> None:
    apart = trainer(model, step_tokens=1).train()
    together = trainer(model, step_tokens=10_000).train()
    assert apart.losses == pytest.approx(together.losses, rel=1e-2)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2, 5, 14])
def test_a_stopped_run_goes_on_with_the_same_numbers(model: TrainableModel, tmp_path: Path, after: int) -> None:
    whole = trainer(model).train()

    def stop(what: str, done: int, total: int | None) -> None:
        if done == after:
            raise Stopped

    with pytest.raises(Stopped):
        trainer(model, tmp_path).train(stop)
    assert trainer(model, tmp_path).train() == whole
    assert trainer(model, tmp_path).train() == whole  # there is nothing left to do


def test_a_checkpoint_of_another_run_is_refused(model: TrainableModel, tmp_path: Path) -> None:
    trainer(model, tmp_path).train()
    with pytest.raises(fb.RequestError, match="other data or options"):
        trainer(model, tmp_path, seed=1).train()
    (tmp_path / "checkpoint.pt").write_bytes(b"broken")
    with pytest.raises(fb.FileError, match="damaged"):
        trainer(model, tmp_path).train()


def test_the_learning_rate_rises_and_falls(model: TrainableModel) -> None:
    run = trainer(model, warmup=0.2)
    rates = [run.learning_rate(step) for step in range(run.num_steps)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == OPTIONS.learning_rate
    assert rates[-1] < 0.1 * max(rates)


def test_samples_are_packed_in_order() -> None:
    samples = texts(10)
    parts = packed(samples, 20)
    assert [sample for part in parts for sample in part] == samples
    assert all(sum(len(s.example.tokens) for s in part) <= 20 for part in parts)
    assert [len(part) for part in packed(samples, 1)] == [1] * 10
    assert packed([], 5) == []


def test_preferences_move_the_model(model: TrainableModel) -> None:
    """Of two answers the shorter one is better, and is likelier afterwards; votes without a partner do so too."""
    short, long = (TokenizedExample([66, *[70] * n], [False, *[True] * n]) for n in (2, 8))
    with torch.no_grad():
        before = [float(scores.sum()) for scores in model.logprobs([short, long])]
    pair = PairSample(short, long, (before[0], before[1]))
    votes = VoteSample(short, True, before[0]), VoteSample(long, False, before[1])
    for samples in ([pair], list(votes)):
        lora = Lora(model.modules, 4)
        run = Trainer(model, lora, samples, [], replace(OPTIONS, epochs=10), None)
        assert run.loss(samples) == pytest.approx(0.6931, abs=1e-3)
        run.train()
        with torch.no_grad():
            after = [float(scores.sum()) for scores in model.logprobs([short, long], lora.terms())]
        assert after[0] - before[0] > after[1] - before[1] + 1
        assert run.loss(samples) < 0.5


@pytest.mark.parametrize(
    "changes", [{"rank": 0}, {"learning_rate": 0.0}, {"alpha": float("inf")}, {"warmup": 2.0}, {"batch": 0}]
)
def test_wrong_options(changes: dict[str, Any]) -> None:
    with pytest.raises(fb.RequestError, match=next(iter(changes))):
        TrainingOptions(**changes)


def test_modules_by_name(model: TrainableModel) -> None:
    assert {m.kind for m in choose_modules(model.modules, ["q_proj"], "llama")} == {"q_proj"}
    with pytest.raises(fb.RequestError, match=r"no modules nothing; there are: q_proj, k_proj"):
        choose_modules(model.modules, ["nothing"], "llama")
    with pytest.raises(fb.RequestError, match="no linear layers"):
        choose_modules([], None, "strange")


def test_tune_writes_an_adapter_and_its_losses(path: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"text": chr(65 + i % 9) * 9}) + "\n" for i in range(20)))
    out = tmp_path / "adapter"
    made = tune(path, data, out, rank=4, epochs=2, batch=4, learning_rate=1e-2, threads=1)
    assert made.held_out
    assert made.held_out[1] < made.held_out[0]
    assert {file.name for file in out.iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "loss.html", "training.json",
    }  # fmt: skip
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["r"] == 4
    assert "model.layers.0.self_attn.q_proj" in config["target_modules"]
    page = (out / "loss.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    with pytest.raises(fb.PathError, match="has an adapter already"):
        tune(path, data, out)
    assert tune(path, data, out, force=True, rank=4, epochs=1, held_out=0, threads=1).held_out is None


@pytest.mark.parametrize(("name", "value"), [("held_out", 1), ("max_tokens", 1)])
def test_wrong_arguments(path: Path, tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(fb.RequestError, match=name):
        tune(path, tmp_path / "data.jsonl", tmp_path / "out", **{name: value})


def test_a_file_is_no_folder(path: Path) -> None:
    with pytest.raises(fb.PathError, match="an adapter is a folder"):
        tune(path, path, path)
