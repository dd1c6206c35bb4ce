"""Makes mtp.npz: for some models of the zoo a random layer that predicts a further token (MTP), and its logits.

python -m tests.zoo.make_mtp --converter LLAMA_CPP_FOLDER

The logits are those of transformers' `MtpLayer`. A token is paired with the hidden row of the token before it, the
first one with zeros. llama.cpp's converter must make the same tensors as the folder has here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpLayer

import fewbit as fb
from fewbit.models import open_model

from .make import ZOO, convert, exact, golden_tokens, random_like
from .records import RECORDS, Record

FAMILIES = ("glm4moe", "deepseek2", "qwen35", "qwen35moe")
CONVERTED = ("glm4moe", "qwen35", "qwen35moe")  # of DeepSeek V3 the converter leaves the layer out
QWEN = {"eh_proj": "mtp.fc", "enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden",
        "shared_head.norm": "mtp.norm"}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--converter", type=Path, required=True, help="folder of llama.cpp's convert_hf_to_gguf.py")
    args = parser.parse_args()
    kept: dict[str, np.ndarray] = {}
    for name in FAMILIES:
        record = next(record for record in RECORDS if record.name == name)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "hf"
            shutil.copytree(ZOO / name / "hf", folder)
            tensors = add_layer(record, folder)
            kept |= {f"{name}/{key}": values.view(torch.uint16).numpy() for key, values in tensors.items()}
            kept[f"{name}/logits"] = logits(record, folder, tensors)
            if name in CONVERTED:
                compare(folder, Path(temporary) / "model.gguf", args.converter, record)
    np.savez_compressed(ZOO / "mtp.npz", **kept)


def add_layer(record: Record, folder: Path) -> dict[str, torch.Tensor]:
    """Adds the tensors of a layer to a checkpoint: those of its last layer with other values, and those of MTP."""
    torch.manual_seed(7)
    path, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    stored, layers, hidden = load_file(path), config["num_hidden_layers"], config["hidden_size"]
    is_qwen = record.name.startswith("qwen")
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in stored.items():
        if (begin := f"model.layers.{layers - 1}.") in name:
            rest = name.split(begin)[1]
            new = f"mtp.layers.0.{rest}" if is_qwen else f"model.layers.{layers}.{rest}"
            tensors[new] = exact(random_like(rest, tensor))
    shapes = {"eh_proj": (hidden, 2 * hidden), "enorm": (hidden,), "hnorm": (hidden,), "shared_head.norm": (hidden,)}
    for part, shape in shapes.items():
        one = torch.zeros(shape) if is_qwen else torch.ones(shape)
        name = f"{QWEN[part]}.weight" if is_qwen else f"model.layers.{layers}.{part}.weight"
        tensors[name] = exact(random_like(part, one))
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(stored | tensors, path, {"format": "pt"})
    config["mtp_num_hidden_layers" if is_qwen else "num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


@torch.no_grad()
def logits(record: Record, folder: Path, tensors: dict[str, torch.Tensor]) -> np.ndarray:
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = getattr(transformers, record.model).from_pretrained(folder, **options).eval()
    tokens = torch.tensor(golden_tokens(record))[None]
    hidden = model(tokens, output_hidden_states=True).hidden_states[-1]
    before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
    positions = torch.arange(tokens.shape[1])[None]
    layer = make_layer(model, tensors)
    mask = torch.full((tokens.shape[1],) * 2, -torch.inf).triu(1)[None, None]
    decoder = model.get_decoder()
    embedded = model.get_input_embeddings()(tokens)
    rotary = decoder.rotary_emb(embedded, position_ids=positions)
    out = layer(embedded, before, rotary, mask, positions, None)
    return model.lm_head(out)[0].float().numpy()


def make_layer(model: Any, tensors: dict[str, torch.Tensor]) -> MtpLayer:
    """transformers' layer with these tensors."""
    decoder, config = model.get_decoder(), model.config
    layer = MtpLayer(config, type(decoder.layers[-1]), type(decoder.norm), config.num_hidden_layers - 1).eval()
    own, experts = layer.state_dict(), dict[tuple[int, str], torch.Tensor]()
    for name, tensor in tensors.items():
        rest = own_name(name, config.num_hidden_layers)
        target = next((key for key in (rest, f"mtp_block.{rest}") if key in own), None)
        if target is None:
            _, _, number, part, _ = rest.split(".")  # mlp.experts.0.up_proj.weight
            experts[int(number), part] = tensor.float()
        else:
            own[target] = tensor.float()
    if experts:
        numbers = sorted({number for number, _ in experts})
        both = [torch.cat([experts[n, "gate_proj"], experts[n, "up_proj"]]) for n in numbers]
        own["mtp_block.mlp.experts.gate_up_proj"] = torch.stack(both)
        own["mtp_block.mlp.experts.down_proj"] = torch.stack([experts[n, "down_proj"] for n in numbers])
    layer.load_state_dict(own)
    return layer.float()


def own_name(name: str, layers: int) -> str:
    """A tensor's name in the layer, before `mtp_block` is put in front of those of the block."""
    rest = name.removeprefix(f"model.layers.{layers}.").removeprefix("mtp.layers.0.")
    for part, qwen in QWEN.items():
        if rest in (f"{part}.weight", f"{qwen}.weight"):
            return "post_norm.weight" if part == "shared_head.norm" else f"{part}.weight"
    return rest


def compare(folder: Path, path: Path, converter: Path, record: Record) -> None:
    """llama.cpp's converter and the folder, tensor by tensor."""
    options = tuple(one for one in record.converter_options if one != "--no-mtp")
    convert(folder, path, converter, replace(record, converter_options=options))
    made, converted = open_model(folder), fb.read_gguf(path)
    assert set(made.tensors) == set(converted.tensors), set(made.tensors) ^ set(converted.tensors)
    for name, tensor in converted.tensors.items():
        np.testing.assert_allclose(made.tensors[name].dequantize(), tensor.dequantize(), rtol=1e-2, err_msg=name)
    key = "nextn_predict_layers"
    assert made.config[key] == converted.metadata[f"{made.architecture}.{key}"] == 1


if __name__ == "__main__":
    main()
