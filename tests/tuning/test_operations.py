"""Graphs in torch beside NumPy, and every architecture beside transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fewbit as fb
from fewbit.models import open_model
from fewbit.ops.graph import OPERATIONS
from fewbit.ops.passes import select_logits
from fewbit.tuning.model import TokenizedExample, TrainableModel
from fewbit.tuning.operations import FUNCTIONS, TorchStep, run

from ..models.test_zoo import ENCODERS, ZOO
from ..ops.steps import VOCAB, near, random_graph, run_numpy
from ..zoo.records import RECORDS

DECODERS = sorted(record.name for record in RECORDS if record.name not in ENCODERS)


def test_every_operation_of_models_is_there() -> None:
    others = {"given", "linears", "gated", "all_gather", "all_reduce"}  # which passes make, some when they are imported
    assert set(OPERATIONS) - set(FUNCTIONS) <= others


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_give_what_numpy_gives(seed: int) -> None:
    graph = select_logits(random_graph(seed))
    tokens = np.random.default_rng(seed).integers(0, VOCAB, 11).tolist()
    wanted = [3, 10, 0]
    step = TorchStep(np.array(tokens), [0, len(tokens)], torch.tensor(wanted))
    assert near(run(graph.nodes, graph.result, step).numpy(), run_numpy(graph, tokens, wanted), 1e-4)


def golden(name: str) -> tuple[list[int], Any]:
    data = np.load(ZOO / name / "golden.npz")
    return data["tokens"].tolist(), data["logits"]


@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_those_of_transformers(name: str) -> None:
    tokens, expected = golden(name)
    model = TrainableModel(open_model(ZOO / name / "model.gguf"), threads=1)
    logits = model.logits(tokens).numpy()
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
    example = TokenizedExample(tokens, [place > 2 for place in range(len(tokens))])
    (scores,) = model.logprobs([example])
    known = torch.from_numpy(logits).log_softmax(1)[torch.arange(2, len(tokens) - 1), tokens[3:]]
    assert torch.allclose(scores, known, atol=1e-4)
    assert model.modules


def test_sequences_in_one_step_do_not_see_each_other() -> None:
    model = TrainableModel(open_model(ZOO / "qwen35" / "model.gguf"), threads=1)  # recurrent layers and attention
    tokens, _ = golden("qwen35")
    examples = [TokenizedExample(part, [True] * len(part)) for part in (tokens[:5], tokens[5:], tokens[2:4])]
    together = model.logprobs(examples)
    for example, scores in zip(examples, together, strict=True):
        assert torch.allclose(scores, model.logprobs([example])[0], atol=1e-4)


def test_encoders_are_refused() -> None:
    with pytest.raises(fb.RequestError, match="is an encoder"):
        TrainableModel(open_model(ZOO / "bert" / "model.gguf"))


def test_a_token_that_is_not_there_is_refused() -> None:
    model = TrainableModel(open_model(Path(ZOO / "llama" / "model.gguf")), threads=1)
    with pytest.raises(fb.RequestError, match="no such token"):
        model.logits([1, 1 << 20])
