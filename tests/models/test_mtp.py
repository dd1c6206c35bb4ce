"""Layers that predict a further token (MTP): names in files, and logits beside those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices.batch import Row
from fewbit.devices.forward import make_batch
from fewbit.devices.mtp import MtpExecutor
from fewbit.devices.stage import inner_batch
from fewbit.files.safetensors import read_safetensors
from fewbit.loading import Loaded
from fewbit.models import load_model, open_model

from ..loading import load
from ..mtp_models import ZOO

FAMILIES = ("glm4moe", "deepseek2", "qwen35", "qwen35moe")
COUNTS = {"glm4moe": "num_nextn_predict_layers", "deepseek2": "num_nextn_predict_layers"}
families = pytest.mark.parametrize("name", FAMILIES)


def make_folder(folder: Path, name: str) -> Path:
    """A checkpoint of the zoo with the layer of mtp.npz, in a file of its own."""
    for path in (ZOO / name / "hf").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {COUNTS.get(name, "mtp_num_hidden_layers"): 1}))
    tensors = {key.removeprefix(f"{name}/"): values for key, values in np.load(ZOO / "mtp.npz").items()
               if key.startswith(f"{name}/") and not key.endswith("/logits")}  # fmt: skip
    header, data = dict[str, Any](), b""
    for key, values in tensors.items():
        offsets = [len(data), len(data) + values.nbytes]
        header[key] = {"dtype": "BF16", "shape": values.shape, "data_offsets": offsets}
        data += values.tobytes()
    text = json.dumps(header).encode()
    (folder / "mtp.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    files = dict.fromkeys(read_safetensors(folder / "model.safetensors"), "model.safetensors")
    index = {"weight_map": files | dict.fromkeys(tensors, "mtp.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_as_gguf(folder: Path, name: str) -> Path:
    made = open_model(folder)
    metadata = dict(fb.read_gguf(ZOO / name / "model.gguf").metadata)
    layers = made.config["block_count"]
    metadata |= {f"{name}.block_count": layers, f"{name}.nextn_predict_layers": 1}
    fb.write_gguf(folder / "model.gguf", metadata, {key: made.tensors[key] for key in made.tensors})
    return folder / "model.gguf"


def logits(loaded: Loaded, tokens: list[int]) -> Floats:
    """Those of the MTP layer for a whole text."""
    executor, cache = loaded.executor, loaded.cache
    assert isinstance(executor, MtpExecutor)
    batch = make_batch(cache, [Row(cache.new(), tokens, len(tokens))])
    hidden = executor._layers.launch(inner_batch(batch)).values()[:, -executor._width :].copy()
    before = np.concatenate([np.zeros_like(hidden[:1]), hidden[:-1]])
    own = executor._layer.launch(inner_batch(batch), before).values().copy()
    rows: Floats = executor._own_head.launch(batch, own).values().copy()
    return rows


@families
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_logits_are_those_of_transformers(tmp_path: Path, name: str, device: str) -> None:
    options = {"activations": "exact"} if device == "cpu" else {}
    loaded = load(open_model(make_folder(tmp_path, name)), device=device, kv="f32", speculate="mtp", **options)
    tokens = [int(token) for token in np.load(ZOO / name / "golden.npz")["tokens"]]
    expected = np.load(ZOO / "mtp.npz")[f"{name}/logits"]
    assert np.abs(logits(loaded, tokens) - expected).max() / np.abs(expected).max() < 1e-4


@families
def test_both_files_give_the_same_guesses(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path, name)
    guesses = []
    for path in (folder, write_as_gguf(folder, name)):
        with fb.LLM(path, ctx=64, speculate="mtp", draft_tokens=2, threads=1) as llm:
            assert llm.engine._speculation is not None
            llm.engine._speculation.is_adaptive = False
            drafter, drafts = llm.engine._speculation.drafter, list[object]()
            propose = drafter.propose
            drafter.propose = lambda *args, p=propose, d=drafts: d.append(r := p(*args)) or r  # type: ignore[method-assign]
            answers = [llm.generate(text, max_tokens=12, temperature=0) for text in ("hello", "the cat")]
            guesses.append(([(one.text, one.draft_tokens, one.accepted_tokens) for one in answers], drafts))
    assert guesses[0] == guesses[1]
    assert guesses[0][1]


@families
def test_without_it_the_layer_is_left_out(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path, name)
    model, with_layer = load_model(open_model(folder)), load_model(open_model(folder), mtp=True)
    assert model.drafting is None
    assert len(with_layer.specs) == len(model.specs) + 1 == model.config.layers + 1
    assert with_layer.step_bytes > model.step_bytes
    assert len(with_layer.graph.nodes) == len(model.graph.nodes)
