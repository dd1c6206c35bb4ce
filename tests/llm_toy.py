"""An LLM on a toy executor, with a token for each byte."""

from __future__ import annotations

from typing import Any

import numpy as np

from fewbit.devices.batch import Batch
from fewbit.llm import LLM, Completion
from fewbit.text.byte_level import BYTE_CHARS
from fewbit.text.tokenizer import Tokenizer

from .engine.toy import Toy, logits_of
from .text.samples import metadata

SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>"]
TOKENS = [*BYTE_CHARS, *SPECIAL]
START, END, BOS = (TOKENS.index(token) for token in SPECIAL)
WARM: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def byte_tokenizer(**more: Any) -> Tokenizer:
    """A token for each byte, and three special ones."""
    kinds = [1] * 256 + [3] * len(SPECIAL)
    more = {"token_type": kinds, "bos_token_id": BOS, "eos_token_id": END, **more}
    return Tokenizer.from_metadata(metadata(TOKENS, **more))


class Endless(Toy):
    """It never ends its output."""

    def __init__(self, ctx: int = 200_000, pages: int = 50_000) -> None:
        super().__init__(vocab=len(TOKENS), ctx=ctx, pages=pages)

    def logits(self, sums: Any, batch: Batch) -> Any:
        logits = super().logits(sums, batch)
        logits[:, END] = -np.inf
        return logits


def make(toy: Toy | None = None, **more: Any) -> LLM:
    return LLM.from_parts((toy or Endless(200, 64)).loaded, byte_tokenizer(**more))


def endless_logits_of(tokens: list[int]) -> Any:
    logits = logits_of(tokens, len(TOKENS))
    logits[:, END] = -np.inf
    return logits


def one(output: Completion | list[Completion]) -> Completion:
    assert isinstance(output, Completion)
    return output


def many(output: Completion | list[Completion]) -> list[Completion]:
    assert isinstance(output, list)
    return output


def bytes_of(tokens: list[int]) -> bytes:
    return bytes(BYTE_CHARS[TOKENS[token]] for token in tokens)
