"""Makes the zoo: tiny random models, as safetensors and as GGUF, with the logits that transformers computes.

python -m tests.zoo.make --converter LLAMA_CPP_FOLDER [NAME ...]

The name `variants` is for variants.npz.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from .records import RECORDS, Record
from .variants import COLUMN_STEP, VARIANTS
from .vocab import write_bpe, write_wordpiece

ZOO = Path(__file__).parent
NUM_TOKENS = 24
SMALLEST = 2.0**-14  # below it float16 loses bits
KEPT = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "modules.json", "1_Pooling"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--converter", type=Path, required=True, help="folder of llama.cpp's convert_hf_to_gguf.py")
    parser.add_argument("names", nargs="*", help="models to make; all if none is named")
    args = parser.parse_args()
    for record in RECORDS:
        if not args.names or record.name in args.names:
            make(record, args.converter)
    if not args.names or "variants" in args.names:
        write_variants()


def make(record: Record, converter: Path) -> None:
    folder = ZOO / record.name
    shutil.rmtree(folder, ignore_errors=True)
    write_checkpoint(record, folder / "hf")
    write_golden(record, folder)
    convert(folder / "hf", folder / "model.gguf", converter, record)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{record.name}: {size / 1000:.0f} KB", flush=True)


# The checkpoint


def write_checkpoint(record: Record, folder: Path) -> None:
    torch.manual_seed(record.seed)
    config = getattr(transformers, record.config)(**record.sizes)
    model = getattr(transformers, record.model)(config)
    randomize(model)
    model.to(torch.bfloat16).save_pretrained(folder)
    (write_wordpiece if record.wordpiece else write_bpe)(folder)
    if record.pooling:
        write_pooling(folder, record)
    if record.mxfp4:
        pack_experts(folder)
    for path in folder.iterdir():
        if path.name not in KEPT:
            path.unlink()
    if record.add_to_config:
        add_to_config(folder, record.add_to_config)
    if record.not_in_config:
        path = folder / "config.json"
        values = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in values.items() if k not in record.not_in_config}, indent=2) + "\n")


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """Gives every tensor random values that bfloat16 and float16 both hold exactly."""
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point():
            tensor.copy_(exact(random_like(name, tensor)))


def random_like(name: str, tensor: torch.Tensor) -> torch.Tensor:
    noise = torch.randn(tensor.shape)
    if "embed" in name or name.endswith(("wte.weight", "wpe.weight")):
        return 0.7 * noise
    if tensor.ndim >= 2:
        return 1.2 * noise / math.sqrt(tensor.shape[-1])
    return tensor.float() + 0.25 * noise  # norms stay near 1 or 0, biases near 0


def exact(tensor: torch.Tensor) -> torch.Tensor:
    rounded = tensor.to(torch.bfloat16).float()
    return torch.where(rounded.abs() < SMALLEST, 0.0, rounded)


def pack_experts(folder: Path) -> None:
    """Puts random MXFP4 blocks in place of the experts' matrices, in the layout of gpt-oss."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        shape = (experts, rows, columns // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(122, 125, shape, dtype=torch.uint8)
    save_file(tensors, path, {"format": "pt"})
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    add_to_config(folder, {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": kept}})


def add_to_config(folder: Path, values: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=2) + "\n")


def write_pooling(folder: Path, record: Record) -> None:
    """Says how token states become one embedding, as sentence-transformers does."""
    kind = "sentence_transformers.models"
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    steps = [{"idx": i, "name": str(i), "path": path, "type": f"{kind}.{t}"} for i, (path, t) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(steps, indent=2) + "\n")
    settings = {
        "word_embedding_dimension": record.sizes["hidden_size"],
        "pooling_mode_cls_token": record.pooling == "cls",
        "pooling_mode_mean_tokens": record.pooling == "mean",
    }
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(settings, indent=2) + "\n")


# The golden data


@torch.no_grad()
def write_golden(record: Record, folder: Path) -> None:
    model = load(record, folder / "hf")
    tokens = golden_tokens(record)
    golden = run(model, record, tokens)
    np.savez_compressed(folder / "golden.npz", tokens=tokens.astype(np.int32), **golden)
    for name in unused(model, record, tokens, golden):
        print(f"{record.name}: {name} changes nothing")


def load(record: Record, folder: Path) -> Any:
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    if record.mxfp4:
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    return getattr(transformers, record.model).from_pretrained(folder, **options).eval()


def golden_tokens(record: Record) -> np.ndarray:
    """Random bytes, or random pieces between [CLS] and [SEP]."""
    draw = np.random.default_rng(1)
    if record.wordpiece:
        return np.array([2, *draw.integers(5, record.sizes["vocab_size"], NUM_TOKENS - 2), 3])
    return draw.integers(0, 256, NUM_TOKENS)


def run(model: Any, record: Record, tokens: np.ndarray) -> dict[str, np.ndarray]:
    output = model(torch.tensor(tokens)[None])
    if not record.pooling:
        return {"logits": output.logits[0].float().numpy()}
    states = output.last_hidden_state[0].float()
    pooled = states[0] if record.pooling == "cls" else states.mean(0)
    return {"states": states.numpy(), "embedding": (pooled / pooled.norm()).numpy()}


def unused(model: Any, record: Record, tokens: np.ndarray, golden: dict[str, np.ndarray]) -> Iterator[str]:
    """Names of the tensors whose values do not matter, each expert for itself."""
    key = next(iter(golden))
    for name, tensor in model.state_dict().items():
        parts = enumerate(tensor) if ".experts." in name and tensor.ndim >= 2 else [("", tensor)]
        for i, part in parts:
            before = part.clone()
            part.add_(0.25 * torch.randn(part.shape))
            if np.array_equal(run(model, record, tokens)[key], golden[key]):
                yield f"{name} {i}"
            part.copy_(before)


@torch.no_grad()
def write_variants() -> None:
    """Some columns of what the same weights give under other config.json files."""
    golden = {}
    for variant in VARIANTS:
        record = next(record for record in RECORDS if record.name == variant.name)
        with tempfile.TemporaryDirectory() as temporary:
            folder = variant.copied(ZOO, Path(temporary))
            model = getattr(transformers, variant.config.get("architectures", [record.model])[0])
            loaded = model.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
            rows = next(iter(run(loaded, record, golden_tokens(record)).values()))
        golden[variant.key] = rows[:, ::COLUMN_STEP]
    np.savez_compressed(ZOO / "variants.npz", **golden)


# GGUF


def convert(source: Path, target: Path, converter: Path, record: Record, outtype: str = "bf16") -> None:
    """Runs llama.cpp's converter; what it does not know are our two tokenizers."""
    sys.path.insert(0, str(converter))
    sys.path.insert(0, str(converter / "gguf-py"))
    text_model = importlib.import_module("conversion.base").TextModel
    text_model._set_vocab_sentencepiece = text_model._set_vocab_glm = text_model._set_vocab_gpt2
    importlib.import_module("conversion.gemma").Gemma4Model.set_vocab = text_model._set_vocab_gpt2
    if record.not_in_config:  # else transformers would add it again
        base = importlib.import_module("conversion.base").ModelBase
        base.load_hparams = staticmethod(
            lambda folder, *_, **__: json.loads((Path(folder) / "config.json").read_text())
        )
    importlib.import_module("conversion.deepseek").DeepseekV32Model.set_vocab = text_model._set_vocab_gpt2
    text_model.get_vocab_base_pre = lambda *_: "jina-v2-en" if record.wordpiece else "gpt-2"
    arguments = [str(source), "--outfile", str(target), "--outtype", outtype, "--model-name", "tiny"]
    arguments += record.converter_options
    before, sys.argv = sys.argv, ["convert_hf_to_gguf.py", *arguments]
    try:
        runpy.run_path(str(converter / "convert_hf_to_gguf.py"), run_name="__main__")
    finally:
        sys.argv = before


if __name__ == "__main__":
    main()
