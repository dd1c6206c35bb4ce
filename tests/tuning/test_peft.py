"""Adapters beside PEFT on the same tiny models: logits, and gradients of the loss."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewbit.models import open_model
from fewbit.tuning.lora import Lora
from fewbit.tuning.model import TokenizedExample, TrainableModel
from fewbit.tuning.saving import save_adapter, saved_adapter

from ..models.test_zoo import ZOO
from .test_operations import DECODERS, golden

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


def random_adapter(model: TrainableModel, rank: int = 4) -> Lora:
    refused = ("out_proj",) if model.file.architecture.startswith("nemotron") else ()  # by PEFT, in these models
    lora = Lora([module for module in model.modules if module.kind not in refused], rank, 2.0 * rank)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for pair in lora.pairs:
            pair.up.normal_(0, 0.1, generator=random)
    return lora


def by_peft(name: str, adapter: Path, trained: bool = False) -> Any:
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = transformers.AutoModelForCausalLM.from_pretrained(ZOO / name / "hf", dtype=torch.float32)
        return peft.PeftModel.from_pretrained(base, adapter, is_trainable=trained)


USUAL = {"llama", "gemma3", "phi3", "lfm2", "qwen3", "gpt2", "deepseek2"}


@pytest.mark.parametrize("name", [n if n in USUAL else pytest.param(n, marks=pytest.mark.exhaustive) for n in DECODERS])
def test_logits_are_those_of_peft(name: str, tmp_path: Path) -> None:
    tokens, base = golden(name)
    model = TrainableModel(open_model(ZOO / name / "model.gguf"), threads=1)
    lora = random_adapter(model)
    save_adapter(lora, tmp_path, "base")
    with torch.no_grad():
        ours = model.logits(tokens, lora.terms()).numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = by_peft(name, tmp_path)(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()
    assert np.abs(ours - base).max() > 1e-2 * np.abs(base).max()  # the adapter does something


@pytest.mark.parametrize("name", ["llama", "gemma2", "phi3", "gpt-oss"])
def test_gradients_are_those_of_peft(name: str, tmp_path: Path) -> None:
    tokens, _ = golden(name)
    model = TrainableModel(open_model(ZOO / name / "model.gguf"), threads=1)
    lora = random_adapter(model)
    save_adapter(lora, tmp_path, "base")
    example = TokenizedExample(tokens, [place > 3 for place in range(len(tokens))])
    (scores,) = model.logprobs([example], lora.terms())
    (-scores.mean()).backward()
    tuned = by_peft(name, tmp_path, trained=True)
    scores = tuned(torch.tensor([tokens])).logits[0].log_softmax(-1)
    (-scores[torch.arange(3, len(tokens) - 1), tokens[4:]].mean()).backward()
    theirs = {key.replace(".default", ""): p.grad for key, p in tuned.named_parameters() if p.requires_grad}
    for pair in lora.pairs:
        for letter, matrix in (("A", pair.down), ("B", pair.up)):
            expected = theirs[f"base_model.model.{pair.module.name}.lora_{letter}.weight"]
            assert (matrix.grad - expected).abs().max() <= 1e-3 * expected.abs().max() + 1e-9


def test_an_adapter_is_read_back(tmp_path: Path) -> None:
    model = TrainableModel(open_model(ZOO / "llama" / "model.gguf"), threads=1)
    lora = random_adapter(model)
    save_adapter(lora, tmp_path, "base")
    other = saved_adapter(model.modules, tmp_path)
    assert other.alpha == lora.alpha
    assert all(torch.equal(a, b) for a, b in zip(lora.parameters, other.parameters, strict=True))
