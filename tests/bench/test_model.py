"""What is measured of a model: which tokens run, at which depth, and how many bytes that reads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fewbit.bench import model
from fewbit.bench.model import ModelCase, decode_speed, prefill_speed, step_bytes
from fewbit.devices.batch import Batch
from fewbit.devices.host import HostHandle
from fewbit.loading import Loaded

from ..engine.toy import Toy

RNG = np.random.default_rng
MEMORY = np.ones(1 << 16, np.uint8)


class Watched(Toy):
    """Remembers what it was asked to run."""

    def __init__(self, ctx: int = 64, pages: int = 64, limit: int = 16) -> None:
        super().__init__(ctx=ctx, pages=pages, max_batched_tokens=limit, max_logits=limit)
        self.calls: list[list[tuple[int, int, int]]] = []  # length before, tokens, rows of logits
        self.texts: list[tuple[int, ...]] = []

    @property
    def loaded(self) -> Loaded:
        return Loaded(self, self.cache, self.ctx, step_bytes=1000)

    def launch(self, batch: Batch) -> HostHandle:
        starts = batch.view.q_starts.tolist()
        rows = np.split(batch.tokens, starts[1:-1])
        logits = [sum(start <= i < end for i in batch.logits_indices) for start, end in pairwise(starts)]
        before = (batch.view.lengths - np.diff(batch.view.q_starts)).tolist()
        self.calls.append(list(zip(before, map(len, rows), logits, strict=True)))
        self.texts += [tuple(row.tolist()) for row in rows]
        return super().launch(batch)


def case(depth: int = 0, batch: int = 1, gen: int = 3) -> ModelCase:
    return ModelCase(prompt=1, gen=gen, depth=depth, batch=batch, threads=1, kv="f32")


def test_a_prompt_runs_in_parts_and_wants_one_row() -> None:
    toy = Watched()
    assert prefill_speed(toy.loaded, 40, 2, RNG(0)) > 0
    parts = [[(0, 16, 0)], [(16, 16, 0)], [(32, 8, 1)]]
    assert toy.calls == [[(0, 16, 1)], *parts, *parts]  # the first is to warm up
    assert len(set(toy.texts)) == len(toy.texts)
    assert toy.cache.stats().used == 0


def test_steps_start_at_the_depth_in_each_round() -> None:
    toy = Watched()
    tokens_per_second, share = decode_speed(toy.loaded, case(depth=20, batch=2), 2, RNG(0), MEMORY)
    assert tokens_per_second > 0
    assert share > 0
    fill = [[(0, 16, 0)], [(16, 3, 0)]]
    steps = [[(length, 1, 1)] * 2 for length in (19, 20, 21, 22)]  # the first brings them to the depth
    assert toy.calls == [*fill, *fill, *steps, *steps, *steps]
    assert len(set(toy.texts[:4])) == 4
    assert toy.cache.stats().used == 0


def test_steps_on_an_empty_cache() -> None:
    toy = Watched()
    decode_speed(toy.loaded, case(), 1, RNG(0), MEMORY)
    assert toy.calls == [[(length, 1, 1)] for length in (0, 1, 2)] * 2


def test_more_sequences_than_one_call_takes() -> None:
    toy = Watched(limit=4)
    decode_speed(toy.loaded, case(batch=10, gen=1), 1, RNG(0), MEMORY)
    assert [len(call) for call in toy.calls] == [4, 4, 2] * 2
    assert step_bytes(toy.loaded, case(batch=10, gen=1)) == 3 * 1000 + 10 * toy.cache.layout.token_bytes


def test_bytes_of_a_step() -> None:
    toy = Watched()
    token = toy.cache.layout.token_bytes
    lengths = [9, 10, 11]  # that the three steps attend to
    assert step_bytes(toy.loaded, case(depth=8, batch=2)) == 1000 + 2 * token * sum(lengths) / 3


def test_the_cache_has_room_for_the_largest_case() -> None:
    for depth, batch, gen in ((0, 1, 1), (20, 3, 5), (31, 2, 2), (32, 2, 33)):
        one = case(depth, batch, gen)
        toy = Watched(ctx=128, pages=one.pages * model.PAGE_TOKENS // 4)
        decode_speed(toy.loaded, one, 2, RNG(0), MEMORY)
