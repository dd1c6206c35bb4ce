from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import TokenizerError
from fewbit.text.charsmap import CharsMap

KEYS = {"A": "a", "\ufb01": "fi", "a\u0300": "\u00e0", "a\u0300\u0301": "(both)", "\t": " ", "\u200b": ""}


def compiled(keys: dict[str, str]) -> bytes:
    """A trie with a block of 256 units for each node."""
    texts = b"".join(text.encode() + b"\0" for text in keys.values())
    places = {key.encode(): texts.index(text.encode() + b"\0") for key, text in keys.items()}
    nodes = sorted({key[:n] for key in places for n in range(len(key) + 1)})
    block = {node: 256 * (i + 1) for i, node in enumerate(nodes)}
    units = [0] * (256 * (len(nodes) + 1))
    units[0] = block[b""] << 10
    for node in nodes[1:]:
        at = block[node[:-1]] ^ node[-1]
        units[at] = (at ^ block[node]) << 10 | (node in places) << 8 | node[-1]
        if node in places:
            units[block[node]] = places[node] | 1 << 31
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts


def replaced(text: str) -> str:
    """The slow and obvious way."""
    out = ""
    while text:
        found = max((key for key in KEYS if text.startswith(key)), key=len, default="")
        out += KEYS[found] if found else text[0]
        text = text[len(found or text[0]) :]
    return out


@given(st.text(st.sampled_from("Aab\ufb01\ufb02\u0300\u0301\t\u200b\U0001f600")))
def test_the_longest_key_is_replaced(text: str) -> None:
    charsmap = CharsMap(compiled(KEYS))
    assert charsmap.normalize(text) == replaced(text)
    assert charsmap.normalize(text) == replaced(text), "from memory"


@pytest.mark.parametrize("data", [b"", b"\4\0\0\0", b"\xff\xff\xff\xff" + bytes(9), b"\3\0\0\0" + bytes(9), bytes(9)])
def test_sizes_that_do_not_fit(data: bytes) -> None:
    with pytest.raises(TokenizerError, match="precompiled_charsmap cannot be read"):
        CharsMap(data)


@given(st.binary(min_size=40, max_size=400), st.text())
def test_any_bytes(noise: bytes, text: str) -> None:
    size = len(noise) // 2 & ~3
    charsmap = CharsMap(struct.pack("<I", size) + noise)
    try:
        charsmap.normalize(text)
    except TokenizerError as error:
        assert "outside" in str(error)  # noqa: PT017
