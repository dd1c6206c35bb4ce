"""The activations of encoders, by the names that transformers has for them."""

from __future__ import annotations

from ...errors import FileError
from ...ops.graph import Value
from ...ops.recorder import Ops
from ..checkpoint import Checkpoint

QUICK = "gelu_quick"  # x * sigmoid(1.702 x), which is made of other operations
ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": QUICK, "silu": "silu"}


def llama_cpp_flags(name: str) -> dict[str, bool]:
    """What llama.cpp's files say of an activation; of quick GELU nothing.

    >>> llama_cpp_flags("gelu_pytorch_tanh"), llama_cpp_flags("quick_gelu")
    ({'use_gelu': True}, {})
    """
    return {"use_silu": True} if name == "silu" else {"use_gelu": True} if name.startswith("gelu") else {}


def read_activation(file: Checkpoint, gelu: str = "gelu_pytorch_tanh", default: str = "quick_gelu") -> str:
    """The activation of a tower's layers, as operations name it.

    Args:
        file: The file. llama.cpp's files say that it is GELU or SiLU, or nothing.
        gelu: Which GELU that is in this family.
        default: What it is where a file says nothing.
    """
    use_gelu, use_silu = (file.flag(f"use_{kind}", default=False) for kind in ("gelu", "silu"))
    if use_gelu and use_silu:
        raise FileError(f"{file.path}: the image encoder cannot have both clip.use_gelu and clip.use_silu")
    return read_named(file, "vision.activation", gelu if use_gelu else "silu" if use_silu else default)


def read_named(file: Checkpoint, key: str, default: str) -> str:
    """An activation by its name in transformers."""
    name = file.word(key, default=default)
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise FileError(f"{file.path}: image encoders with the activation {name!r} are not known; there are: {known}")
    return ACTIVATIONS[name]


def activate(ops: Ops, x: Value, kind: str) -> Value:
    return ops.gate(ops.scale(x, 1.702), x, "sigmoid") if kind == QUICK else ops.activate(x, kind)


def gate(ops: Ops, x: Value, up: Value, kind: str) -> Value:
    """kind(x) * up."""
    return ops.gate(activate(ops, x, kind), up, "none") if kind == QUICK else ops.gate(x, up, kind)
