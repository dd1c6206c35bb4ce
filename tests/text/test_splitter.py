from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fewbit.text.splitter import Splitter

WORDS = st.dictionaries(st.text("ab<", max_size=3), st.integers(0, 9))


@given(WORDS, st.text("ab<c", max_size=30))
def test_nothing_is_lost(words: dict[str, int], text: str) -> None:
    cut = list(Splitter(words).split(text))
    spelled = {token: word for word, token in words.items()}
    if len(spelled) == len(words):
        assert "".join(part if isinstance(part, str) else spelled[part] for part in cut) == text
    for part in cut:
        assert part != ""
        assert isinstance(part, int) or not any(word and word in part for word in words)


def test_the_leftmost_and_then_the_longest() -> None:
    assert list(Splitter({"ab": 1, "abc": 2, "bcd": 3}).split("abcdab")) == [2, "d", 1]


def test_whitespace_around_a_token_can_go_with_it() -> None:
    words = {"<m>": 1, "<e>": 2}
    assert list(Splitter(words, strip_left=[1], strip_right=[2]).split("a \t<m> b<e>\n <e> \nc")) == [
        "a",
        1,
        " b",
        2,
        2,
        "c",
    ]


def test_without_tokens() -> None:
    assert list(Splitter({}).split("abc")) == ["abc"]
    assert list(Splitter({"": 1}).split("")) == []
