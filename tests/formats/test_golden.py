"""Bytes that must never change: packed files outlive the program that wrote them.

After a change of an encoder that is meant, write the new ones with `python -m tests.formats.test_golden`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from fewbit.formats import Format
from fewbit.formats.decode import decode
from fewbit.ops import cpu

from ..samples import ALL, random_rows

PATH = Path(__file__).parents[1] / "golden" / "bytes.json"
SHAPE = (8, 577)


def short(data: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()[:16]


def weights() -> tuple[np.ndarray, np.ndarray]:
    """From integers: no generator of random floats to rely on."""
    i = np.arange(SHAPE[0] * SHAPE[1], dtype=np.uint64)
    mixed = (i * 2654435761 % 65521).astype(np.float32).reshape(SHAPE)
    return mixed / 65521 - np.float32(0.5), (mixed[0] % 7 + 1).astype(np.float32)


def digests(fmt: Format) -> dict[str, str]:
    x, importance = weights()
    return {
        "decode": short(decode(fmt, random_rows(fmt, *SHAPE), SHAPE[1])),
        "encode": short(cpu.encode(fmt, x)),
        "importance": short(cpu.encode(fmt, x, importance)),
    }


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_bytes_are_as_they_were(fmt: Format) -> None:
    golden = json.loads(PATH.read_text())
    if fmt.name not in golden:
        pytest.skip("a new format: write its bytes with `python -m tests.formats.test_golden`")
    assert digests(fmt) == golden[fmt.name]


if __name__ == "__main__":
    PATH.write_text(json.dumps({fmt.name: digests(fmt) for fmt in ALL}, indent=1) + "\n")
