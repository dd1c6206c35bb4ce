"""What a browser says of a file, as JSON."""

from __future__ import annotations

from base64 import b64encode
from typing import Any


def described(file: Any) -> dict[str, Any]:
    keys = (f"{file.architecture}.", "tokenizer.ggml.")
    metadata = {}
    for key, value in file.metadata.items():
        plain = value.tolist() if hasattr(value, "tolist") else value
        is_list = not isinstance(plain, (str, int, float))
        if key.startswith(keys[0]) or key in ("general.architecture", "general.name"):
            metadata[key] = list(plain) if is_list else plain
        elif key.startswith(keys[1]) and not is_list:
            metadata[key] = plain
    return {
        "metadata": metadata,
        "tensors": [(name, info.format.gguf, list(info.shape)) for name, info in file.infos.items()],
        "vectors": {
            name: b64encode(file.tensors[name].to_bytes()).decode()
            for name, info in file.infos.items() if is_small(name, info)
        },
    }  # fmt: skip


def is_small(name: str, info: Any) -> bool:
    """Whether the values of a tensor are sent: vectors, taps of convolutions, and biases."""
    is_float = info.format.name in ("f32", "f16", "f64", "bf16")
    return len(info.shape) == 1 or (
        len(info.shape) == 2 and is_float and (info.shape[1] <= 64 or name.endswith(".bias"))
    )
