"""Makes tiny random models that see, as safetensors and as GGUF, with what transformers makes of pictures.

python -m tests.vision_zoo.make --converter LLAMA_CPP_FOLDER [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from ..zoo import make as zoo
from ..zoo.make import convert, exact, random_like
from ..zoo.vocab import BPE_SIZE, write_bpe
from .pixels import MANY
from .records import RECORDS, VisionRecord

FOLDER = Path(__file__).parent
KEPT = [*zoo.KEPT, "preprocessor_config.json", "processor_config.json"]
NUM_GREEDY = 16
TEXT = "What is in <image> the pictures?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--converter", type=Path, required=True, help="folder of llama.cpp's convert_hf_to_gguf.py")
    parser.add_argument("names", nargs="*", help="models to make; all if none is named")
    args = parser.parse_args()
    for record in RECORDS:
        if not args.names or record.name in args.names:
            make(record, args.converter)


def make(record: VisionRecord, converter: Path) -> None:
    folder = FOLDER / record.name
    for seed in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        processor = write_checkpoint(record, folder / "hf", seed)
        if write_golden(record, folder, processor) >= NUM_GREEDY // 2:
            break
    for path in (folder / "hf").iterdir():
        if path.name not in KEPT:
            path.unlink()
    rename_tensors(record, folder / "hf" / "model.safetensors")
    if record.add_to_text_config:
        add_to_text_config(folder / "hf" / "config.json", record.add_to_text_config)
    for target, options in (("model.gguf", record.converter_options), ("mmproj.gguf", ("--mmproj",))):
        convert(folder / "hf", folder / target, converter, Options(options))  # type: ignore[arg-type]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{record.name}: {size / 1000:.0f} KB", flush=True)


class Options:
    """What the zoo's `convert` reads of a record."""

    wordpiece = False
    not_in_config = ()

    def __init__(self, converter_options: tuple[str, ...]) -> None:
        self.converter_options = converter_options


def write_checkpoint(record: VisionRecord, folder: Path, seed: int) -> Any:
    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    ids = {name: BPE_SIZE + i for i, name in enumerate(record.specials)}
    rest = {key: ids.get(value, value) if isinstance(value, str) else value for key, value in record.rest.items()}
    config = getattr(transformers, record.config)(text_config=record.text, vision_config=record.vision, **rest)
    model = getattr(transformers, record.model)(config)
    randomize(model)
    with torch.no_grad():
        model.get_input_embeddings().weight *= record.embeddings
    model.to(torch.bfloat16).save_pretrained(folder)
    processor = record.processor(write_tokenizer(record, folder))
    processor.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"chat_template": record.template, "tokenizer_class": "GPT2Tokenizer"}
    path.write_text(json.dumps(settings, indent=2) + "\n")
    write_preprocessor(folder)
    return processor


def write_preprocessor(folder: Path) -> None:
    """The settings of the image processor in a file of their own too, as most checkpoints have them."""
    path = folder / "processor_config.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    if "image_processor" in settings:
        (folder / "preprocessor_config.json").write_text(json.dumps(settings["image_processor"], indent=2) + "\n")


def add_to_text_config(path: Path, values: dict[str, Any]) -> None:
    config = json.loads(path.read_text())
    config["text_config"] |= values
    path.write_text(json.dumps(config, indent=2) + "\n")


def rename_tensors(record: VisionRecord, path: Path) -> None:
    """The names of published checkpoints, which transformers reads and does not write."""
    tensors = load_file(path)
    for old, new in record.published.items():
        tensors = {name.replace(old, new, 1): tensor for name, tensor in tensors.items()}
    for name in tensors:
        if name.endswith(record.transposed or ("\0",)):
            tensors[name] = tensors[name].transpose(-1, -2).contiguous()
    save_file(tensors, path, {"format": "pt"})


def write_tokenizer(record: VisionRecord, folder: Path) -> Any:
    write_bpe(folder)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*record.specials]})
    for name, text in record.names.items():
        setattr(tokenizer, name, text)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(text))
    return tokenizer


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """As the zoo's; what multiplies from the right or is applied to patches gets values of the same size."""
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point():
            tensor.copy_(exact(random_values(name, tensor)))


def random_values(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if name.endswith(("_min", "_max")):  # limits that some values are beyond
        return (0.5 + torch.rand(tensor.shape)) * (1 if name.endswith("_max") else -1)
    if name.endswith(("std_bias", "std_scale")):  # which have no values yet
        return float(name.endswith("std_scale")) + 0.25 * torch.randn(tensor.shape)
    if tensor.ndim > 2 and not name.endswith("embedding_table"):
        return 1.2 * torch.randn(tensor.shape) / tensor[0].numel() ** 0.5
    return random_like(name, tensor)


def pictures() -> list[np.ndarray]:
    """A wide one and a high one, of smooth noise."""
    draw = np.random.default_rng(7)
    small = [draw.integers(0, 256, shape, np.uint8) for shape in ((5, 9, 3), (7, 4, 3))]
    sizes = [(83, 47), (30, 61)]
    return [
        np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))
        for pixels, size in zip(small, sizes, strict=True)
    ]


@torch.no_grad()
def write_golden(record: VisionRecord, folder: Path, processor: Any) -> int:
    """Returns how many different tokens the greedy text has."""
    model = getattr(transformers, record.model)
    loaded = model.from_pretrained(folder / "hf", dtype=torch.float32, attn_implementation="eager").eval()
    images = pictures()
    parts = [{"type": "text", "text": "One:"}, {"type": "image"}, {"type": "image"}, {"type": "text", "text": TEXT}]
    messages = [{"role": "user", "content": [part for part in parts if part.get("text") != TEXT]}]
    messages[0]["content"].append({"type": "text", "text": "What is it?"})
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    pils = [Image.fromarray(pixels) for pixels in images]
    inputs = processor(images=pils, text=text, return_tensors="pt", add_special_tokens=False)
    features = features_of(loaded, inputs)
    logits = loaded(**inputs).logits[0].float().numpy()
    greedy = loaded.generate(**inputs, max_new_tokens=NUM_GREEDY, do_sample=False)[0][inputs["input_ids"].shape[1] :]
    np.savez_compressed(
        folder / "golden.npz", first=images[0], second=images[1], tokens=inputs["input_ids"][0].numpy(),
        features=features, logits=logits[:: every(len(logits))], greedy=greedy.numpy(), text=np.array(text),
    )  # fmt: skip
    return len(set(greedy.tolist()))


def every(count: int) -> int:
    """How far apart the positions are whose logits are kept."""
    return -(-count // MANY)


def features_of(model: Any, inputs: Any) -> np.ndarray:
    keys = ("pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask", "image_position_ids")
    given = {key: inputs[key] for key in keys if key in inputs}
    found = model.get_image_features(**given)
    found = getattr(found, "pooler_output", found)
    rows = torch.cat([*found]) if isinstance(found, tuple | list) else found
    return rows.reshape(-1, rows.shape[-1]).float().numpy()


if __name__ == "__main__":
    main()
