"""What is measured of a model: which tokens run, at which depth, and how many bytes that reads."""

from __future__ import annotations

import numpy as np

from fewbit import speed
from fewbit.engine.contract import Chunk
from fewbit.speed import Case, decode_speed, prefill_speed, step_bytes

from .engine.toy import Floats, Toy

RNG = np.random.default_rng
MEMORY = np.ones(1 << 16, np.uint8)


class Watched(Toy):
    """Remembers what it was asked to run."""

    step_bytes = 1000

    def __init__(self, ctx: int = 64, pages: int = 64, most: int = 16) -> None:
        super().__init__(ctx=ctx, pages=pages, most_tokens=most, most_wanted=most)
        self.calls: list[list[tuple[int, int, int]]] = []  # length before, tokens, wanted
        self.texts: list[tuple[int, ...]] = []

    def forward(self, chunks: list[Chunk]) -> Floats:  # type: ignore[override]
        self.calls.append([(self.cache.length(c.sequence), len(c.tokens), c.wanted) for c in chunks])
        self.texts += [tuple(c.tokens) for c in chunks]
        return super().forward(chunks)


def case(depth: int = 0, batch: int = 1, gen: int = 3) -> Case:
    return Case(prompt=1, gen=gen, depth=depth, batch=batch, threads=1, kv="f32")


def test_a_prompt_runs_in_parts_and_wants_one_row() -> None:
    runner = Watched()
    assert prefill_speed(runner, 40, 2, RNG(0)) > 0
    parts = [[(0, 16, 0)], [(16, 16, 0)], [(32, 8, 1)]]
    assert runner.calls == [[(0, 16, 1)], *parts, *parts]  # the first is to warm up
    assert len(set(runner.texts)) == len(runner.texts)
    assert runner.cache.stats().used == 0


def test_steps_start_at_the_depth_in_each_round() -> None:
    runner = Watched()
    tokens_per_second, share = decode_speed(runner, case(depth=20, batch=2), 2, RNG(0), MEMORY)
    assert tokens_per_second > 0
    assert share > 0
    fill = [[(0, 16, 0)], [(16, 3, 0)]]
    steps = [[(length, 1, 1)] * 2 for length in (19, 20, 21, 22)]  # the first brings them to the depth
    assert runner.calls == [*fill, *fill, *steps, *steps, *steps]
    assert len(set(runner.texts[:4])) == 4
    assert runner.cache.stats().used == 0


def test_steps_on_an_empty_cache() -> None:
    runner = Watched()
    decode_speed(runner, case(), 1, RNG(0), MEMORY)
    assert runner.calls == [[(length, 1, 1)] for length in (0, 1, 2)] * 2


def test_more_sequences_than_one_call_takes() -> None:
    runner = Watched(most=4)
    decode_speed(runner, case(batch=10, gen=1), 1, RNG(0), MEMORY)
    assert [len(call) for call in runner.calls] == [4, 4, 2] * 2
    assert step_bytes(runner, case(batch=10, gen=1)) == 3 * 1000 + 10 * runner.cache.layout.token_bytes


def test_bytes_of_a_step() -> None:
    runner = Watched()
    token = runner.cache.layout.token_bytes
    lengths = [9, 10, 11]  # that the three steps attend to
    assert step_bytes(runner, case(depth=8, batch=2)) == 1000 + 2 * token * sum(lengths) / 3


def test_the_cache_has_room_for_the_largest_case() -> None:
    for depth, batch, gen in ((0, 1, 1), (20, 3, 5), (31, 2, 2), (32, 2, 33)):
        one = case(depth, batch, gen)
        runner = Watched(ctx=128, pages=one.pages * speed.PAGE_TOKENS // 4)
        decode_speed(runner, one, 2, RNG(0), MEMORY)
