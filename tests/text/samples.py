from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from fewbit.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "text"
STORED = ["smollm2", "phi-3", "bert-bge", "deepseek-coder"]
LOSSLESS = ["smollm2", "phi-3", "deepseek-coder"]


@cache
def stored(name: str) -> Any:
    return json.loads(lzma.decompress((GOLDEN / "tokens" / f"{name}.json.xz").read_bytes()))


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_metadata(stored(name))


def metadata(tokens: list[str], model: str = "gpt2", **more: Any) -> dict[str, Any]:
    """A small vocabulary; the names of `more` are keys under `tokenizer.ggml`."""
    keys = {"model": model, "tokens": tokens, **({"merges": []} if model == "gpt2" else {}), **more}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def pieces(*tokens: str, **more: Any) -> dict[str, Any]:
    """A small SentencePiece vocabulary: three special tokens, all bytes, then `tokens`, the best first."""
    every = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *tokens]
    scores = [0.0] * 259 + [-float(i) for i in range(len(tokens))]
    return metadata(every, "llama", scores=scores, token_type=[2, 3, 3] + [6] * 256 + [1] * len(tokens), **more)
