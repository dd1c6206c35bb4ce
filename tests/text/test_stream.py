from __future__ import annotations

from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fewbit.errors import TokenizerError
from fewbit.text.stream import StopStrings, TextStream

from .samples import LOSSLESS, STORED, tokenizer


@cache
def ids_of(name: str) -> st.SearchStrategy[list[int]]:
    """Tokens of a real text, any tokens, and tokens of single bytes."""
    tokens = tokenizer(name)
    low = [i for i in range(tokens.vocab_size) if len(tokens.token_bytes(i)) == 1]
    special = [i for i in range(tokens.vocab_size) if tokens.is_special(i)]
    one = st.integers(0, tokens.vocab_size - 1) | st.sampled_from(low) | st.sampled_from(special)
    return st.text().map(lambda text: tokens.encode(text.encode("utf-8", "replace").decode())) | st.lists(one)


@pytest.mark.parametrize("name", STORED)
@given(data=st.data(), skip_special=st.booleans(), continues=st.booleans())
def test_a_stream_says_what_decode_says(name: str, data: st.DataObject, skip_special: bool, continues: bool) -> None:
    tokens = tokenizer(name)
    ids = data.draw(ids_of(name))
    stream = TextStream(tokens, skip_special, continues)
    parts = [stream.feed(token) for token in ids] + [stream.finish()]
    assert "".join(parts) == tokens.decode(ids, skip_special, continues)


@pytest.mark.parametrize("name", LOSSLESS)
def test_no_half_characters(name: str) -> None:
    tokens = tokenizer(name)
    stream = TextStream(tokens)
    text = "né 日本語 👩\u200d👧 \U0001f3f3"
    parts = [stream.feed(token) for token in tokens.encode(text)]
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)
    assert stream.finish() == ""


def test_a_character_that_never_ends() -> None:
    tokens = tokenizer("smollm2")
    ids = [i for i in range(tokens.vocab_size) if tokens.token_bytes(i) in (b"\xf0", b"\x9f")]
    stream = TextStream(tokens)
    assert "".join(stream.feed(token) for token in ids) + stream.finish() == tokens.decode(ids)
    assert "\ufffd" in tokens.decode(ids)


def test_special_tokens_are_not_shown() -> None:
    tokens = tokenizer("phi-3")
    ids = tokens.encode("<|assistant|>\nHi you<|end|>", parse_special=True)
    stream = TextStream(tokens)
    assert "".join(map(stream.feed, ids)) == "Hi you"
    stream = TextStream(tokens, skip_special=False)
    assert "".join(map(stream.feed, ids)) == "<|assistant|>Hi you<|end|>"


def cut_at_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Letter by letter, the slow and obvious way."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.lists(st.text("abc", max_size=6)), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
@example(["xa", "bc"], ["ab", "xabc"])
@example(["aa", "ab"], ["aab"])
def test_stop_strings(parts: list[str], stops: list[str]) -> None:
    stop = StopStrings(stops)
    shown = ""
    for i, part in enumerate(parts):
        shown += stop.feed(part)
        so_far = "".join(parts[: i + 1])
        if stop.found is None:
            held = len(so_far) - len(shown)
            assert so_far.startswith(shown)
            assert held == 0 or any(word.startswith(so_far[-held:]) for word in stops)
    wanted = cut_at_stop("".join(parts), stops)
    assert (shown + stop.finish(), stop.found) == wanted


def test_no_stop_strings() -> None:
    stop = StopStrings([])
    assert (stop.feed("abc"), stop.found, stop.finish()) == ("abc", None, "")


@pytest.mark.parametrize("stops", ["text", ["a", ""]])
def test_bad_stop_strings(stops: list[str]) -> None:
    with pytest.raises(TokenizerError, match="stop strings are a list of strings that are not empty"):
        StopStrings(stops)
