"""Choosing tokens: the reference by itself, and the native code beside it with each instruction set."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.errors import DataError, DtypeError, FewbitError, ShapeError
from fewbit.ops import cpu, sampling
from fewbit.ops.sampling import Rule, Seen, distribution, penalized

Floats = npt.NDArray[np.float32]

EVERYTHING = Rule(1, top_k=0, top_p=1, min_p=0)


@pytest.fixture(scope="module", params=["numpy", *cpu.isas()])
def backend(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The NumPy reference, and the native code with each instruction set."""
    if request.param == "numpy":
        yield sampling
        return
    with cpu.forced_isa(request.param):
        yield cpu


def _rows(kind: str, rows: int, vocab: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, vocab), np.float32)
    if kind == "peaked":
        x = 3 * x
        x[:, rng.integers(0, vocab, min(vocab, 5))] += 9
    elif kind == "ties":
        x = np.round(x)
    elif kind == "equal":
        x[:] = x[:, :1]
    elif kind == "close":  # one far below, all others nearly the same
        x *= 1e-3
        x[:, 0] = -1e4
    elif kind == "great":
        x *= 1e30
    elif kind == "zeros":  # of both signs
        x = np.copysign(np.float32(0), x)
    elif kind == "masked":
        x[rng.random(x.shape) < 0.7] = -np.inf
        x[:, rng.integers(0, vocab)] = 1
    return x


KINDS = ["flat", "peaked", "ties", "equal", "close", "great", "zeros", "masked"]


def _agrees(token: int, row: Floats, rule: Rule, uniform: float, slack: float = 1e-6) -> bool:
    """Whether a token is right for penalized logits, if sums of probabilities may be off by so much.

    Where the sum is that close to top_p, or a token to min_p, one more or one less may be kept.
    """
    if rule.temperature == 0:
        return token == distribution(row, rule)[0][0]
    ids, weights = distribution(row, replace(rule, top_p=1, min_p=0))
    sums = np.cumsum(weights)

    def kept(by: float) -> float:
        count = len(ids) if rule.top_p == 1 else int(np.searchsorted(sums, rule.top_p + by)) + 1
        likely = int((weights >= rule.min_p * weights[0] * (1 - 10 * by)).sum())
        return float(sums[max(1, min(count, likely, len(ids))) - 1])

    place = int(np.flatnonzero(ids == token)[0])
    before = sums[place - 1] if place else 0.0
    return bool(before <= uniform * kept(slack) + slack and sums[place] >= uniform * kept(-slack) - slack)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    def some(values: list[float], least: float, most: float) -> float:
        return draw(st.sampled_from(values) | st.floats(least, most))

    return Rule(
        temperature=some([0, 1, 1, 0.8, 1e-3, 1e-40, 100.0, 1e6], 0.1, 3),
        top_k=draw(st.sampled_from([0, 0, 1, 40]) | st.integers(0, 6000)),
        top_p=some([1, 1, 0.95, 0, 0.999999], 0, 1),
        min_p=some([0, 0, 0.05, 1, 1e-30], 0, 1),
        repetition=some([1, 1, 1.1], 0.5, 3),
        presence=some([0, 0, 0.5], -2, 2),
        frequency=some([0, 0, 0.5], -2, 2),
    )


def _seen(rng: np.random.Generator, vocab: int, most: int = 300) -> Seen:
    ids = rng.permutation(vocab)[: rng.integers(0, min(vocab, most) + 1)].astype(np.int32)
    return ids, rng.integers(0, 4, len(ids)).astype(np.int32)


@pytest.mark.parametrize("isa", cpu.isas())
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_native_agrees_with_the_reference(isa: str, data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 5000) | st.sampled_from([1, 63, 64, 65, 1023, 1024, 1025, 49152]), "vocab")
    kind, seed = data.draw(st.sampled_from(KINDS), "kind"), data.draw(st.integers(0, 2**32), "seed")
    some = data.draw(st.lists(rules(), min_size=1, max_size=4), "rules")
    rng = np.random.default_rng(seed)
    x = _rows(kind, len(some), vocab, seed)
    uniforms = data.draw(
        st.lists(st.floats(0, 1, exclude_max=True), min_size=len(some), max_size=len(some)), "uniforms"
    )
    seen = [_seen(rng, vocab) if rng.random() < 0.5 else None for _ in some]
    with cpu.forced_isa(isa):
        tokens, logprobs = cpu.sample(x, some, uniforms, seen, threads=data.draw(st.sampled_from([1, 2, 5]), "threads"))
    assert tokens.dtype == np.int32
    assert logprobs.dtype == np.float32
    for row, rule, uniform, past, token in zip(x, some, uniforms, seen, tokens.tolist(), strict=True):
        changed = row if past is None else penalized(row, rule, past)
        assert np.isfinite(row[token])
        assert _agrees(token, changed, rule, uniform), (token, rule)
    np.testing.assert_allclose(logprobs, sampling.log_probabilities(x, tokens), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vocab", [333, 49152])
@pytest.mark.parametrize("kind", ["flat", "peaked"])
@pytest.mark.parametrize("rule", [
    Rule(), Rule(0), EVERYTHING, Rule(0.7, top_k=0, top_p=0.9, min_p=0), Rule(1.5, top_k=0, top_p=1, min_p=0.1),
    Rule(1, top_k=20000, top_p=0.99, min_p=0), Rule(repetition=1.3, presence=0.2, frequency=0.1),
], ids=str)  # fmt: skip
def test_native_is_nearly_always_the_same(rule: Rule, kind: str, vocab: int) -> None:
    rng = np.random.default_rng(3)
    count = 40
    x, uniforms = _rows(kind, count, vocab, 5), rng.random(count)
    seen = [_seen(rng, vocab) for _ in range(count)]
    ours, ours_logprobs = cpu.sample(x, [rule] * count, uniforms, seen)
    wanted, logprobs = sampling.sample(x, [rule] * count, uniforms, seen)
    assert (ours != wanted).sum() <= 1
    np.testing.assert_allclose(ours_logprobs[ours == wanted], logprobs[ours == wanted], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_instruction_sets_and_threads_change_nothing(kind: str) -> None:
    x = _rows(kind, 8, 3001, 7)
    uniforms = np.random.default_rng(0).random(8)
    some = [
        Rule(),
        EVERYTHING,
        Rule(0),
        Rule(2, top_k=0),
        Rule(1, top_k=900),
        Rule(0.3, 0, 0.5, 0),
        Rule(min_p=1),
        Rule(),
    ]
    results = []
    for isa in cpu.isas():
        with cpu.forced_isa(isa):
            results += [cpu.sample(x, some, uniforms, threads=threads) for threads in (1, 2, 3)]
    for tokens, logprobs in results:
        np.testing.assert_array_equal(tokens, results[0][0])
        np.testing.assert_array_equal(logprobs, results[0][1])


@pytest.mark.parametrize("rule", [
    EVERYTHING, Rule(), Rule(0.7, top_k=0, top_p=0.8, min_p=0), Rule(2, top_k=50, top_p=1, min_p=0),
    Rule(1, top_k=0, top_p=1, min_p=0.1),
], ids=str)  # fmt: skip
def test_draws_follow_the_probabilities(backend: ModuleType, rule: Rule) -> None:
    draws = 20_000
    rng = np.random.default_rng(11)
    row = 2 * rng.standard_normal(120, np.float32)
    x = np.tile(row, (draws, 1))
    ids, probabilities = distribution(row, rule)
    tokens, _ = backend.sample(x, [rule] * draws, rng.random(draws))
    counts = np.bincount(tokens, minlength=120)
    assert counts[np.setdiff1d(np.arange(120), ids)].sum() == 0
    expected = draws * probabilities
    rare = expected < 10  # they are counted together
    pairs = [*zip(counts[ids][~rare], expected[~rare], strict=True)]
    if rare.any():
        pairs.append((counts[ids][rare].sum(), expected[rare].sum()))
    chi_square = sum((got - wanted) ** 2 / wanted for got, wanted in pairs)
    freedom = len(pairs) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom) + 4


def _one(backend: ModuleType, row: Any, rule: Rule, uniform: float = 0.0, seen: Any = None) -> int:
    tokens, _ = backend.sample(np.asarray([row], np.float32), [rule], [uniform], None if seen is None else [seen])
    return int(tokens[0])


def _ints(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def _chosen(backend: ModuleType, row: Any, rule: Rule, seen: Any = None) -> list[int]:
    """All tokens that some uniform number chooses, in the order of these."""
    tokens = [_one(backend, row, rule, u, seen) for u in np.linspace(0, 0.9999, 200)]
    return list(dict.fromkeys(tokens))


def test_temperature_0_takes_the_first_of_the_largest(backend: ModuleType) -> None:
    assert _one(backend, [1, 3, 3, 2], Rule(0), 0.99) == 1
    assert _one(backend, [-0.0, 0.0], Rule(0)) == 0
    assert _one(backend, [-np.inf, -5], Rule(0)) == 1
    wide = np.zeros(5000)
    wide[[4321, 4999]] = 1
    assert _one(backend, wide, Rule(0)) == 4321


def test_walks_from_likely_to_unlikely(backend: ModuleType) -> None:
    row = np.log([1, 4, 2, 2, 1])
    assert _chosen(backend, row, EVERYTHING) == [1, 2, 3, 0, 4]
    assert [_one(backend, row, EVERYTHING, u) for u in (0.39, 0.41, 0.59, 0.61, 0.79, 0.81)] == [1, 2, 2, 3, 3, 0]


def test_top_k_keeps_the_lower_id_of_ties(backend: ModuleType) -> None:
    row = [1, 2, 2, 2, 0]
    for k, wanted in enumerate([[1], [1, 2], [1, 2, 3], [1, 2, 3, 0]], 1):
        assert _chosen(backend, row, replace(EVERYTHING, top_k=k)) == wanted
    assert _chosen(backend, row, replace(EVERYTHING, top_k=1000)) == [1, 2, 3, 0, 4]


def test_top_p_keeps_as_few_as_reach_it(backend: ModuleType) -> None:
    row = np.log([8, 4, 2, 1, 1])
    for p, kept in [(0, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.9, 4), (0.95, 5), (1, 5)]:
        assert _chosen(backend, row, replace(EVERYTHING, top_p=p)) == list(range(kept)), p


def test_top_p_is_of_what_top_k_left(backend: ModuleType) -> None:
    row = np.log([4, 3, 3])
    assert _chosen(backend, row, replace(EVERYTHING, top_k=2, top_p=0.56)) == [0]  # 4 of 7; all would be 4 of 10
    assert _chosen(backend, row, replace(EVERYTHING, top_p=0.56)) == [0, 1]


def test_min_p_is_of_the_likeliest(backend: ModuleType) -> None:
    row = np.log([10, 5.1, 4.9, 1.1, 0.9])
    for p, kept in [(0.05, 5), (0.1, 4), (0.45, 3), (0.5, 2), (0.6, 1), (1, 1)]:
        assert _chosen(backend, row, replace(EVERYTHING, min_p=p)) == list(range(kept)), p
    assert _chosen(backend, row, replace(EVERYTHING, temperature=10, min_p=0.8)) == [0, 1, 2, 3]
    assert _chosen(backend, [1, 2, 2], replace(EVERYTHING, min_p=1)) == [1, 2]
    assert _one(backend, np.zeros(2000), replace(EVERYTHING, min_p=1), 0.9999) == 1999


def test_temperature_flattens(backend: ModuleType) -> None:
    row = np.log([9, 1])
    assert _one(backend, row, EVERYTHING, 0.89) == 0
    assert _one(backend, row, replace(EVERYTHING, temperature=2), 0.76) == 1  # 3 to 1
    assert _one(backend, row, replace(EVERYTHING, temperature=1e-6), 0.9999) == 0


def test_penalties(backend: ModuleType) -> None:
    greedy = Rule(0)
    assert _one(backend, [2, 1.5], replace(greedy, repetition=2), 0, (_ints(0), _ints(0))) == 1  # 2 / 2
    assert _one(backend, [-1, -1.5], replace(greedy, repetition=2), 0, (_ints(0), _ints(0))) == 1  # -1 * 2
    assert _one(backend, [2, 1.5], replace(greedy, presence=1), 0, (_ints(0), _ints(0))) == 0  # in the prompt only
    assert _one(backend, [2, 1.5], replace(greedy, presence=1), 0, (_ints(0), _ints(5))) == 1
    assert _one(backend, [2, 1.5], replace(greedy, frequency=0.2), 0, (_ints(0), _ints(2))) == 0
    assert _one(backend, [2, 1.5], replace(greedy, frequency=0.2), 0, (_ints(0), _ints(3))) == 1
    assert _one(backend, [-np.inf, -9], replace(greedy, presence=-1e6), 0, (_ints(0), _ints(1))) == 1
    nothing = _ints(), _ints()
    assert _one(backend, [2, 1.5], replace(greedy, repetition=2), 0, nothing) == 0


def test_penalties_do_not_change_the_log_probability(backend: ModuleType) -> None:
    x = np.log([[1, 3]]).astype(np.float32)
    rule = Rule(0, presence=5)
    tokens, logprobs = backend.sample(x, [rule], [0.5], [(_ints(1), _ints(1))])
    assert tokens.tolist() == [0]
    np.testing.assert_allclose(logprobs, np.log([0.25]), atol=1e-6)


def test_rows_have_rules_of_their_own(backend: ModuleType) -> None:
    x = np.tile(np.log([1, 2, 4]).astype(np.float32), (4, 1))
    past = _ints(2), _ints(1)
    some = [Rule(0), EVERYTHING, Rule(0, presence=2), Rule(0, presence=2)]
    tokens, logprobs = backend.sample(x, some, [0.9] * 4, [None, None, past, None])
    assert tokens.tolist() == [2, 0, 1, 2]
    np.testing.assert_allclose(np.exp(logprobs), [4 / 7, 1 / 7, 2 / 7, 4 / 7], rtol=1e-5)


def test_masked_tokens_are_never_chosen(backend: ModuleType) -> None:
    row = np.full(3000, -np.inf)
    row[[17, 2999]] = [0, 1]
    for rule in (Rule(0), Rule(), EVERYTHING, replace(EVERYTHING, top_k=2999), Rule(1e6, top_k=0, top_p=0.99)):
        assert set(_chosen(backend, row, rule)) <= {17, 2999}
    assert _chosen(backend, row, EVERYTHING) == [2999, 17]


def test_other_arrays_are_taken(backend: ModuleType) -> None:
    x = np.log([[1, 2, 4], [4, 2, 1]])
    for logits in (x, x.astype(np.float16), x[::-1].astype(np.float32)[::-1], x.tolist()):
        tokens, logprobs = backend.sample(logits, [Rule(0)] * 2, np.zeros(2, np.float32))
        assert tokens.tolist() == [2, 0]
        np.testing.assert_allclose(np.exp(logprobs), 4 / 7, rtol=1e-3)
    assert backend.sample(x[:1], [Rule(0)], [0], [([2], [1])])[0].tolist() == [2]
    tokens, logprobs = backend.sample(np.zeros((0, 5), np.float32), [], [])
    assert len(tokens) == len(logprobs) == 0


def test_log_probabilities(backend: ModuleType) -> None:
    for kind in KINDS:
        x = _rows(kind, 6, 2500, 1).astype(np.float64)
        tokens = x.argsort(axis=1)[np.arange(6), [-1, -2, -10, -100, 1000, 0]]
        shifted = x - x.max(axis=1, keepdims=True)
        wanted = (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))[np.arange(6), tokens]
        ours = backend.log_probabilities(x, tokens, threads=2)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vocab", [1, 64, 1500, 49152])
@pytest.mark.parametrize("kind", KINDS)
def test_top_tokens(backend: ModuleType, kind: str, vocab: int) -> None:
    row = _rows(kind, 1, vocab, 2)[0]
    likeliest = np.argsort(-row, kind="stable")
    shifted = row.astype(np.float64) - row.max()
    wanted = (shifted - np.log(np.exp(shifted).sum()))[likeliest]
    for count in {0, 1, min(5, vocab), min(vocab, 700), vocab}:
        ids, logprobs = backend.top_tokens(row, count)
        assert ids.dtype == np.int32
        assert logprobs.dtype == np.float32
        np.testing.assert_array_equal(ids, likeliest[:count])
        np.testing.assert_allclose(logprobs, wanted[:count], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.nan])
@pytest.mark.parametrize("place", [0, 77, 2499])
def test_logits_that_are_no_numbers(backend: ModuleType, bad: float, place: int) -> None:
    x = _rows("flat", 3, 2500, 0)
    x[1, place] = bad
    match = "row 1 of the logits holds NaN or \\+infinity"
    for rule in (Rule(0), Rule()):
        with pytest.raises(DataError, match=match):
            backend.sample(x, [rule] * 3, [0.5] * 3)
    with pytest.raises(DataError, match=match):
        backend.log_probabilities(x, [0, 1, 2])
    with pytest.raises(DataError, match="row 0 of the logits"):
        backend.top_tokens(x[1], 3)


def test_rows_without_a_token(backend: ModuleType) -> None:
    x = np.zeros((2, 9), np.float32)
    x[1] = -np.inf
    match = "row 1 of the logits holds no token that can be chosen"
    with pytest.raises(DataError, match=match):
        backend.sample(x, [Rule()] * 2, [0.5] * 2)
    with pytest.raises(DataError, match=match):
        backend.log_probabilities(x, [0, 1])


X = np.zeros((2, 9), np.float32)
TWO = [Rule(), Rule()]


@pytest.mark.parametrize(("error", "match", "arguments"), [
    (ShapeError, "logits must have shape \\(rows, vocab\\), their shape is \\(9,\\)", (X[0], TWO, [0, 0])),
    (ShapeError, "logits must have shape", (np.zeros((2, 0), np.float32), TWO, [0, 0])),
    (DtypeError, "logits", ([["a"]], TWO, [0, 0])),
    (ShapeError, "rules must be given for each of 2 rows, 1", (X, TWO[:1], [0, 0])),
    (DtypeError, "rules must be Rule objects", (X, [Rule(), {}], [0, 0])),
    (ShapeError, "uniforms must be given for each of 2 rows, 3", (X, TWO, [0, 0, 0])),
    (ShapeError, "uniforms must be one number", (X, TWO, [[0, 0]])),
    (DtypeError, "uniforms must be numbers", (X, TWO, ["a", "b"])),
    (DataError, "uniform number of row 1: 1", (X, TWO, [0, 1])),
    (DataError, "uniform number of row 0: -0.1", (X, TWO, [-0.1, 0])),
    (DataError, "uniform number of row 0: nan", (X, TWO, [np.nan, 0])),
    (ShapeError, "seen must be given for each of 2 rows", (X, TWO, [0, 0], [None])),
    (ShapeError, "token ids and counts", (X, TWO, [0, 0], [None, ([0],)])),
    (ShapeError, "as many counts as tokens", (X, TWO, [0, 0], [None, ([0], [1, 2])])),
    (ShapeError, "one row", (X, TWO, [0, 0], [None, ([[0]], [[1]])])),
    (DtypeError, "integers", (X, TWO, [0, 0], [None, ([0.5], [1])])),
    (DataError, "32 bits", (X, TWO, [0, 0], [None, ([2**40], [1])])),
    (DataError, "seen tokens of row 1: 9 is not from 0 to 8", (X, TWO, [0, 0], [None, ([9], [1])])),
    (DataError, "seen tokens of row 1: -1 is not from 0 to 8", (X, TWO, [0, 0], [None, ([-1], [1])])),
    (DataError, "seen tokens of row 0: a count is negative", (X, TWO, [0, 0], [([1], [-1]), None])),
    (DataError, "seen tokens of row 0: a token is given twice", (X, TWO, [0, 0], [([1, 2, 1], [1, 1, 1]), None])),
])  # fmt: skip
def test_what_sample_refuses(backend: ModuleType, error: type[FewbitError], match: str, arguments: Any) -> None:
    with pytest.raises(error, match=match):
        backend.sample(*arguments)


def test_what_the_others_refuse(backend: ModuleType) -> None:
    with pytest.raises(DataError, match="token of row 1: 9 is not from 0 to 8"):
        backend.log_probabilities(X, [0, 9])
    with pytest.raises(DataError, match="token of row 0: -1"):
        backend.log_probabilities(X, [-1, 0])
    with pytest.raises(ShapeError, match="tokens must be given for each of 2 rows"):
        backend.log_probabilities(X, [0])
    with pytest.raises(DtypeError, match="integers"):
        backend.log_probabilities(X, [0.0, 1.0])
    with pytest.raises(ShapeError, match="one row"):
        backend.top_tokens(X, 1)
    for count in (-1, 10):
        with pytest.raises(DataError, match="count must be from 0 to 9"):
            backend.top_tokens(X[0], count)
    with pytest.raises(DtypeError, match="count must be an integer"):
        backend.top_tokens(X[0], 1.5)


@pytest.mark.parametrize(("values", "match"), [
    ({"temperature": -0.1}, "temperature must be from 0"),
    ({"temperature": float("nan")}, "temperature must be from 0"),
    ({"temperature": float("inf")}, "temperature must be from 0"),
    ({"temperature": "1"}, "temperature must be a number, not '1'"),
    ({"top_k": -1}, "top_k must be from 0 to 2147483647, -1 was given"),
    ({"top_k": 2**31}, "top_k must be from 0"),
    ({"top_k": 1.0}, "top_k must be an integer"),
    ({"top_k": None}, "top_k must be an integer"),
    ({"top_p": 1.01}, "top_p must be from 0 to 1"),
    ({"min_p": -0.01}, "min_p must be from 0 to 1"),
    ({"repetition": 0}, "repetition must be from 1e-06 to 1000000"),
    ({"presence": float("inf")}, "presence must be from -1000000"),
    ({"frequency": float("nan")}, "frequency must be from -1000000"),
])  # fmt: skip
def test_rules_that_are_refused(values: dict[str, Any], match: str) -> None:
    with pytest.raises(FewbitError, match=match):
        Rule(**values)


def test_rules_are_values() -> None:
    names = ["temperature", "top_k", "top_p", "min_p", "repetition", "presence", "frequency"]
    assert [field.name for field in fields(Rule)] == names
    rule = Rule(np.float32(0.5), np.int64(3), presence=1)
    assert rule == Rule(0.5, 3, presence=1.0)
    assert hash(rule) == hash(Rule(0.5, 3, presence=1.0))
    assert type(rule.top_k) is int
    for again in (copy.copy(rule), copy.deepcopy(rule), pickle.loads(pickle.dumps(rule)), replace(rule)):
        assert again == rule
        assert again.packed == rule.packed
    assert np.frombuffer(replace(rule, top_p=0.25).packed).tolist() == [0.5, 3, 0.25, 0.05, 1, 1, 0]
