"""What tokens so far forbid or penalize, beside definitions that look at everything again."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.engine.history_bias import NgramBans, RepeatPenalty, TextBans, TokenIndex
from fewbit.ops.sampler_chain import SamplerChain

TOKENS = st.lists(st.integers(0, 3), max_size=30)


def dry_penalties(tokens: list[int], chain: SamplerChain, breakers: frozenset[int]) -> dict[int, float]:
    """The longest repetition that each token would extend, found by comparing."""
    window = (
        tokens if chain.dry_penalty_last_n < 0 else tokens[len(tokens) - min(len(tokens), chain.dry_penalty_last_n) :]
    )
    longest: dict[int, int] = {}
    for end in range(len(window) - 1):  # the token after `end` follows a repetition of so many tokens
        length = 0
        while length <= end and window[end - length] == window[-1 - length] and window[end - length] not in breakers:
            length += 1
        if length >= max(1, chain.dry_allowed_length):
            longest[window[end + 1]] = max(longest.get(window[end + 1], 0), length)
    return {t: chain.dry_multiplier * chain.dry_base ** (n - chain.dry_allowed_length) for t, n in longest.items()}


@settings(deadline=None, max_examples=200)
@given(TOKENS, TOKENS, st.integers(0, 3), st.sampled_from([-1, 0, 1, 4, 100]), st.sets(st.integers(0, 3), max_size=1))
def test_dry(prompt: list[int], output: list[int], allowed: int, last: int, breakers: set[int]) -> None:
    chain = SamplerChain(dry_multiplier=0.5, dry_base=1.5, dry_allowed_length=allowed, dry_penalty_last_n=last)
    found = RepeatPenalty(prompt, chain, frozenset(breakers))
    for count in range(len(output) + 1):
        got = found.penalties()
        expected = dry_penalties([*prompt, *output[:count]], chain, frozenset(breakers))
        assert (set() if got is None else {*got[0].tolist()}) == expected.keys()
        if got is not None:
            np.testing.assert_allclose(got[1], [expected[token] for token in got[0].tolist()], rtol=1e-5)
        if count < len(output):
            found.add(output[count])


def test_the_penalty_of_a_long_repetition_is_finite() -> None:
    found = RepeatPenalty([1] * 5000, SamplerChain(dry_multiplier=10, dry_base=100), frozenset())
    penalties = found.penalties()
    assert penalties is not None
    assert np.isfinite(penalties[1]).all()


@given(TOKENS, TOKENS, st.integers(1, 4))
def test_ngrams(prompt: list[int], output: list[int], size: int) -> None:
    bans = NgramBans(prompt, size)
    for token in output:
        bans.add(token)
    tokens = [*prompt, *output]
    known = {tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1)}
    expected = {t for t in range(4) if len(tokens) >= size - 1 and (*tokens[len(tokens) - size + 1 :], t) in known}
    assert bans.banned() == expected


VOCABULARY = [b"", b"a", b"b", b"c", b"ab", b"bca", b"cab", b"aa", b"\xc3"]


@settings(deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=4).map(str.encode), min_size=1, max_size=3),
    st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=12),
)
def test_texts(texts: list[bytes], tokens: list[int]) -> None:
    bans: Any = TextBans(TokenIndex(VOCABULARY), texts)
    written = b""
    for token in tokens:
        expected = {t for t, data in enumerate(VOCABULARY) if any(text in written + data for text in texts)}
        assert bans.banned() == expected
        if token in expected:
            break
        written += VOCABULARY[token]
        bans.add(token)
