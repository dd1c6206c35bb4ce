"""Images are encoded between steps: others go on meanwhile, each image is encoded once, and errors go to who waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from fewbit.arrays import Floats
from fewbit.engine.embedded import EmbeddedPart, EmbeddedPrompt, EncodedRows, EncoderInput
from fewbit.engine.encodings import Encodings
from fewbit.engine.engine import MAX_SLICE, MIN_SLICE, Engine
from fewbit.engine.request import Request
from fewbit.errors import FewbitError, ImageError, RequestError

from .alone import WARM, is_clean, make_engine, run
from .toy import Toy

ROWS = 4


@dataclass
class Encoder:
    """An encoder whose work on each image takes some slices."""

    slices: int = 5
    fails: bool = False
    begun: list[bytes] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of each slice

    def source(self, digest: bytes) -> EncoderInput:
        return EncoderInput(digest, lambda: Work(self, digest))


class Work:
    def __init__(self, encoder: Encoder, digest: bytes) -> None:
        self.encoder, self.digest, self.left = encoder, digest, encoder.slices
        encoder.begun.append(digest)

    def run(self, seconds: float) -> bool:
        self.encoder.seconds.append(seconds)
        self.left -= 1
        if self.encoder.fails and self.left == 1:
            raise ImageError("the image cannot be encoded")
        return self.left <= 0

    def rows(self) -> Sequence[Floats]:
        assert self.left <= 0
        return [np.full((ROWS, 2), self.digest[0], np.float32)]


def prompt(encoder: Encoder, *digests: bytes) -> tuple[list[int], EmbeddedPrompt]:
    """A token before each image and one after the last."""
    tokens = [1, *[2] * ROWS] * len(digests) + [3]
    parts = [
        EmbeddedPart(1 + number * (ROWS + 1), EncodedRows(encoder.source(digest), 0, ROWS), digest)
        for number, digest in enumerate(digests)
    ]
    return tokens, EmbeddedPrompt(parts, tokens)


def seeing(engine: Engine, encoder: Encoder, *digests: bytes, n: int = 1) -> list[Request]:
    tokens, embedded = prompt(encoder, *digests)
    requests: list[Request] = [*engine.generation(tokens, WARM, max_tokens=3, seed=1, n=n, embedded=embedded)]
    engine.add(requests)
    return requests


def test_others_get_tokens_while_an_image_is_encoded() -> None:
    engine, encoder = make_engine(toy := Toy()), Encoder(slices=9)
    writing = engine.generation([1, 2, 3], WARM, max_tokens=20, seed=3)[0]
    engine.add([writing])
    (looking,) = seeing(engine, encoder, b"a")
    lengths = []
    while not looking.tokens[looking.prompt_tokens :]:
        assert engine.step()
        lengths.append(len(writing.tokens))
    assert len(encoder.seconds) == 9
    assert lengths[:9] == [*range(4, 13)]  # a token between each two slices
    run(engine)
    assert writing.finish_reason == looking.finish_reason == "length"
    assert is_clean(toy)


def test_slices_are_bounded() -> None:
    engine, encoder = make_engine(Toy()), Encoder()
    seeing(engine, encoder, b"a")
    run(engine)
    assert len(encoder.seconds) == 5
    assert MIN_SLICE <= min(encoder.seconds) <= max(encoder.seconds) <= MAX_SLICE


def test_the_same_image_is_encoded_once() -> None:
    engine, encoder = make_engine(Toy()), Encoder()
    first, second = seeing(engine, encoder, b"a"), seeing(engine, encoder, b"a", b"b", b"a")
    assert engine.stats().waiting == 2
    run(engine)
    assert encoder.begun == [b"a", b"b"]
    later = seeing(engine, encoder, b"b")
    run(engine)
    assert encoder.begun == [b"a", b"b"]  # it was kept
    assert {one.finish_reason for one in (*first, *second, *later)} == {"length"}


def test_rows_are_those_of_their_image() -> None:
    engine, encoder = make_engine(Toy()), Encoder()
    (request,) = seeing(engine, encoder, b"a", b"b")
    assert request.embedded is not None
    with pytest.raises(RequestError, match="not encoded"):
        request.embedded.row_inputs(0, 5)
    run(engine)
    inserted = request.embedded.row_inputs(0, 11).inserted
    assert [(first, rows[0, 0]) for _, first, rows in inserted] == [(1, ord("a")), (6, ord("b"))]


def test_what_is_kept_is_limited() -> None:
    encoder, kept = Encoder(slices=1), Encodings(kept_bytes=2 * ROWS * 8)
    engine = make_engine(Toy())
    engine._encodings = kept
    for digest in (b"a", b"b", b"a", b"c", b"a", b"b"):  # b was used least lately when c came
        seeing(engine, encoder, digest)
        run(engine)
    assert encoder.begun == [b"a", b"b", b"c", b"b"]


def forgetful(toy: Toy) -> Engine:
    """An engine that keeps the rows of one image."""
    engine = make_engine(toy)
    engine._encodings = Encodings(kept_bytes=0)
    return engine


def test_an_image_inside_a_cached_prefix_is_not_encoded() -> None:
    engine, encoder = forgetful(toy := Toy(page_tokens=ROWS + 1)), Encoder()
    (first,) = seeing(engine, encoder, b"a")
    run(engine)
    seeing(engine, encoder, b"b")
    run(engine)
    (again,) = seeing(engine, encoder, b"a")
    run(engine)
    assert encoder.begun == [b"a", b"b"]
    assert again.tokens == first.tokens
    assert again.cached_tokens == ROWS + 1
    (longer,) = seeing(engine, encoder, b"a", b"c")
    run(engine)
    assert encoder.begun == [b"a", b"b", b"c"]
    assert longer.finish_reason == "length"
    assert (engine.stats().images_encoded, engine.stats().images_reused) == (3, 2)
    assert is_clean(toy)


def test_an_image_whose_page_ends_inside_it_is_encoded() -> None:
    engine, encoder = forgetful(Toy(page_tokens=ROWS)), Encoder()
    for digest in (b"a", b"b", b"a"):
        (request,) = seeing(engine, encoder, digest)
        run(engine)
    assert request.cached_tokens == ROWS
    assert encoder.begun == [b"a", b"b", b"a"]


@pytest.mark.parametrize("n", [1, 3])
def test_an_image_is_encoded_if_its_pages_go_before_the_request_is_admitted(n: int) -> None:
    engine, encoder = forgetful(toy := Toy(page_tokens=ROWS + 1, pages=12)), Encoder()
    first = seeing(engine, encoder, b"a", n=n)
    run(engine)
    seeing(engine, encoder, b"b")
    run(engine)
    again = seeing(engine, encoder, b"a", n=n)
    assert engine.stats().images_reused == 1
    other = toy.cache.new([])
    toy.cache.reserve([(other, 12 * (ROWS + 1))])  # takes every page
    toy.cache.free(other)
    run(engine)
    assert encoder.begun == [b"a", b"b", b"a"]
    assert [one.tokens for one in again] == [one.tokens for one in first]
    assert is_clean(toy)


def test_who_ends_before_the_image_is_encoded_after_all_waits_no_more() -> None:
    engine, encoder = forgetful(toy := Toy(page_tokens=ROWS + 1, pages=12)), Encoder()
    for digest in (b"a", b"b"):
        seeing(engine, encoder, digest)
        run(engine)
    again = seeing(engine, encoder, b"a")
    other = toy.cache.new([])
    toy.cache.reserve([(other, 12 * (ROWS + 1))])
    toy.cache.free(other)
    engine.step()
    engine.cancel(again)
    assert not engine.step()
    assert len(encoder.begun) <= 3
    assert again[0].finish_reason == "cancelled"


def test_preempted_requests_encode_their_images_if_their_pages_have_gone() -> None:
    engine, encoder = forgetful(toy := Toy(page_tokens=ROWS + 1, pages=5)), Encoder()
    tokens, embedded = prompt(encoder, b"a")
    first = engine.generation(tokens, WARM, max_tokens=12, seed=1, embedded=embedded)[0]
    engine.add([first])
    run(engine)
    seeing(engine, encoder, b"b")
    run(engine)
    tokens, embedded = prompt(encoder, b"a")
    again = engine.generation(tokens, WARM, max_tokens=12, seed=1, embedded=embedded)[0]
    engine.add([again])
    engine.step()
    assert engine.stats().images_reused == 1
    urgent = engine.generation([5] * 4, WARM, max_tokens=20, seed=2, priority=5)[0]
    engine.add([urgent])
    run(engine)
    assert engine.stats().preemptions > 0
    assert encoder.begun == [b"a", b"b", b"a"]
    assert again.tokens == first.tokens
    assert urgent.finish_reason == "length"
    assert is_clean(toy)


def test_work_that_nobody_waits_for_is_dropped() -> None:
    engine, encoder = make_engine(toy := Toy()), Encoder()
    first, second = seeing(engine, encoder, b"a"), seeing(engine, encoder, b"b")
    engine.step()
    assert encoder.begun == [b"a"]
    engine.cancel(first)
    run(engine)
    assert encoder.begun == [b"a", b"b"]
    assert len(encoder.seconds) == 1 + 5
    assert first[0].finish_reason == "cancelled"
    assert second[0].finish_reason == "length"
    assert is_clean(toy)


def test_work_goes_on_for_those_who_still_wait() -> None:
    engine, encoder = make_engine(Toy()), Encoder()
    first, second = seeing(engine, encoder, b"a"), seeing(engine, encoder, b"a")
    engine.step()
    engine.cancel(first)
    run(engine)
    assert len(encoder.seconds) == 5
    assert second[0].finish_reason == "length"


def test_errors_go_to_those_who_wait_for_the_image() -> None:
    engine, encoder = make_engine(toy := Toy()), Encoder(fails=True)
    fine = Encoder()
    requests = [*seeing(engine, encoder, b"a", n=2), *seeing(engine, encoder, b"b", b"a")]
    (other,) = seeing(engine, fine, b"c")
    writing = engine.generation([1, 2, 3], WARM, max_tokens=4, seed=3)[0]
    engine.add([writing])
    run(engine)
    assert {one.finish_reason for one in requests} == {"error"}
    assert {str(one.error) for one in requests} == {"the image cannot be encoded"}
    assert other.finish_reason == writing.finish_reason == "length"
    encoder.fails = False
    (again,) = seeing(engine, encoder, b"a")  # an error is not kept
    run(engine)
    assert again.finish_reason == "length"
    assert is_clean(toy)


def test_deadlines_pass_while_an_image_is_encoded() -> None:
    now = [0.0]
    toy, encoder = Toy(), Encoder(slices=1000)
    engine = Engine(toy, toy.cache, toy.ctx, clock=lambda: now[0])
    tokens, embedded = prompt(encoder, b"a")
    request = engine.generation(tokens, WARM, max_tokens=3, embedded=embedded, deadline=5)[0]
    engine.add([request])
    engine.step()
    assert request.finish_reason is None
    now[0] = 6.0
    assert not engine.step()
    assert request.finish_reason == "deadline"


def test_a_closed_engine_ends_those_who_wait() -> None:
    engine, encoder = make_engine(Toy()), Encoder()
    (request,) = seeing(engine, encoder, b"a")
    engine.fail(FewbitError("closed"))
    assert request.finish_reason == "error"
    assert not engine.step()
    assert not encoder.begun
