"""Makes a random LoRA adapter for models of the zoo: PEFT's folder, llama.cpp's GGUF of it, and the logits of both.

python -m tests.zoo.adapters --converter LLAMA_CPP_FOLDER [NAME ...]

They need torch, transformers and peft.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from safetensors.torch import load_file, save_file

from .make import ZOO, golden_tokens, load
from .records import RECORDS

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CONFIG_KEYS = ["peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules",
               "modules_to_save", "fan_in_fan_out", "bias", "use_dora"]  # fmt: skip


@dataclass(frozen=True)
class Adapted:
    """An adapter: the model's name in the zoo, and options of PEFT."""

    name: str
    modules: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    gguf: bool = True  # whether llama.cpp's converter knows it


ADAPTERS = [
    Adapted("llama", [*ALL, "lm_head"]),
    Adapted("qwen2", ["q_proj", "v_proj"], {"use_rslora": True}, gguf=False),  # the converter takes no such scale
    Adapted("qwen3", ALL, {"rank_pattern": {"q_proj": 5}, "alpha_pattern": {"down_proj": 20}}, gguf=False),
    Adapted("gemma2", ALL, dtype=torch.bfloat16),
    Adapted("gemma3", [*ALL, "embed_tokens"]),
    Adapted("phi3", ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], dtype=torch.float16),
    Adapted("mistral3", ALL, gguf=False),  # the converter wants sentencepiece
    Adapted("gpt2", ["c_attn", "c_proj", "c_fc"], {"fan_in_fan_out": True}, gguf=False),  # the converter transposes it
    Adapted("granite", ALL, {"modules_to_save": ["lm_head"]}, gguf=False),
    Adapted("olmo2", ["q_proj", "k_proj", "down_proj"]),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--converter", type=Path, required=True, help="folder of llama.cpp's convert_lora_to_gguf.py")
    parser.add_argument("names", nargs="*", help="models; all if none is named")
    args = parser.parse_args()
    for adapted in ADAPTERS:
        if not args.names or adapted.name in args.names:
            make(adapted, args.converter)


@torch.no_grad()
def make(adapted: Adapted, converter: Path) -> None:
    record = next(record for record in RECORDS if record.name == adapted.name)
    folder = ZOO / adapted.name
    torch.manual_seed(1)
    config = peft.LoraConfig(r=3, lora_alpha=7, target_modules=adapted.modules, **adapted.options)
    model = peft.get_peft_model(load(record, folder / "hf"), config).eval()
    for name, tensor in sorted(model.state_dict().items()):
        if ".lora_" in name:
            tensor.copy_((0.3 * torch.randn(tensor.shape)).to(adapted.dtype))
        elif "modules_to_save" in name:
            tensor.add_((0.1 * torch.randn(tensor.shape)).to(torch.bfloat16))
    tokens = golden_tokens(record)
    logits = model(torch.tensor(tokens)[None]).logits[0].float().numpy()
    save(model, adapted, folder / "adapter")
    if adapted.gguf:
        convert(folder, converter)
    np.savez_compressed(folder / "adapter.npz", logits=logits)
    size = sum(path.stat().st_size for path in [*(folder / "adapter").iterdir(), *folder.glob("adapter.*")])
    print(f"{adapted.name}: {size / 1000:.0f} KB", flush=True)


def save(model: Any, adapted: Adapted, folder: Path) -> None:
    """As PEFT saves it, but for copies of the model's own tensors, which only take room."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    kept = {name: x.to(adapted.dtype) for name, x in tensors.items() if not name.endswith(".base_layer.weight")}
    save_file(kept, path, {"format": "pt"})
    (folder / "README.md").unlink(missing_ok=True)


def convert(folder: Path, converter: Path) -> None:
    command = [sys.executable, str(converter / "convert_lora_to_gguf.py"), str(folder / "adapter"), "--base",
               str(folder / "hf"), "--outfile", str(folder / "adapter.gguf"), "--outtype", "f32"]  # fmt: skip
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
