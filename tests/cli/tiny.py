"""A small model with random weights that writes random bytes, in a GGUF file, and the command in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fewbit as fb
from fewbit.text.byte_level import BYTE_CHARS

from ..models.random_llama import llama

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def write_tiny(
    path: Path,
    template: str | None = TEMPLATE,
    control: tuple[str, ...] = (),
    general: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Its tokens are the bytes, and `zq`, since there must be one merge. It has none that ends an answer."""
    tokens = [*BYTE_CHARS, "zq", *control]
    words: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["z q"],
    }
    words["tokenizer.ggml.token_type"] = [1] * (len(tokens) - len(control)) + [3] * len(control)
    metadata, tensors = llama(vocab=len(tokens), context_length=1 << 16, **options)
    chat = {} if template is None else {"tokenizer.chat_template": template}
    fb.write_gguf(path, {**metadata, **words, **chat, **(general or {})}, tensors)
    return path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "", "TERM": "dumb", **more}


def start(*args: str, **streams: Any) -> subprocess.Popen[bytes]:
    """`fewbit` in a process of its own; streams are pipes unless given."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-m", "fewbit", *args], env=environment(), **{**pipes, **streams})
