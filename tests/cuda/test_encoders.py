"""Image encoders on a GPU that only counts: they run in slices beside the steps of others, and send weights once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from fewbit import encoding
from fewbit.devices.cuda_executor import CudaExecutor
from fewbit.devices.cuda_handles import PIECE
from fewbit.encoding import ImageEncoder
from fewbit.engine import engine as engines
from fewbit.engine.embedded import EmbeddedPart, EmbeddedPrompt, EncodedRows, EncoderInput
from fewbit.errors import RequestError
from fewbit.images import PreparedImage, open_picture
from fewbit.load_options import LoadOptions
from fewbit.ops.cuda import device, fused, plan

from ..engine.alone import WARM, is_clean, make_engine, run
from ..engine.toy import Toy
from ..models.vision.zoo import NAMES, encoder_file, golden, opened
from .test_plan import CountingGpu

NAME = "pixtral"


class SmallGpu(CountingGpu):
    """Has so little shared memory that no attention fits."""

    def __init__(self, ordinal: int = 0) -> None:
        super().__init__(ordinal)
        self.device.properties.max_shared_memory_per_block_optin = 1 << 10


@pytest.fixture
def encoder() -> Iterator[ImageEncoder]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "_opened", cache(CountingGpu))
        yield ImageEncoder(encoder_file(f"{NAME}/model.gguf"), LoadOptions(device="cuda"))


def image(encoder: ImageEncoder, key: str = "first") -> PreparedImage:
    return encoder.model.prepare(open_picture(golden(NAME)[key]))


def launched(executor: CudaExecutor) -> list[str]:
    """The kernels that were launched since the last time."""
    session: Any = executor.device
    names, session.names = session.names, []
    return list(names)


def test_a_step_runs_some_operations_at_a_time(encoder: ImageEncoder) -> None:
    tower, _ = encoder.load()
    executor, step = tower.executor, tower.step(image(encoder))
    assert isinstance(executor, CudaExecutor)
    launched(executor)
    slices = []
    while not step.run(0.0):
        slices.append(launched(executor))
    slices.append(launched(executor))
    assert len(slices) == -(-len(executor.plans["hidden"].launches) // PIECE)
    assert len(slices) > 5
    whole = tower.step(image(encoder))
    assert whole.run(60.0)
    assert launched(executor) == [name for names in slices for name in names]
    assert whole.values().shape == (48, encoder.model.sizes.hidden)


def test_a_step_that_is_given_up_leaves_nothing(encoder: ImageEncoder) -> None:
    tower, _ = encoder.load()
    executor, begun = tower.executor, tower.step(image(encoder))
    assert not begun.run(0.0)
    launched(executor)
    step = tower.step(image(encoder, "second"))
    assert step.run(60.0)
    assert len(step.values()) == 32
    names = launched(executor)
    again = tower.step(image(encoder, "second"))
    assert again.run(60.0)
    assert launched(executor) == names


def test_others_get_a_token_between_two_slices(encoder: ImageEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MIN_SLICE", 0.0)
    monkeypatch.setattr(engines, "MAX_SLICE", 0.0)
    stages = encoder.load()
    engine, picture = make_engine(toy := Toy()), image(encoder)
    writing = engine.generation([1, 2, 3], WARM, max_tokens=40, seed=3)[0]
    engine.add([writing])
    count = picture.grid[0] * picture.grid[1]
    rows = EncodedRows(EncoderInput(b"a", lambda: encoder.begin(picture)), 0, count)
    tokens = [1, *[2] * count, 3]
    embedded = EmbeddedPrompt([EmbeddedPart(1, rows, b"a")], tokens)
    (looking,) = engine.generation(tokens, WARM, max_tokens=3, seed=1, embedded=embedded)
    engine.add([looking])
    lengths = []
    while rows.source.rows is None:
        assert engine.step()
        lengths.append(len(writing.tokens))
    pieces = sum(-(-len(stage.executor.plans["hidden"].launches) // PIECE) for stage in stages)
    assert len(lengths) >= pieces - 1 > 5  # the last one of the tower and the first of the projector are one slice
    assert np.diff(lengths).tolist() == [1] * (len(lengths) - 1)
    run(engine)
    assert writing.finish_reason == looking.finish_reason == "length"
    assert is_clean(toy)


def test_weights_are_sent_before_the_first_image_and_once(
    encoder: ImageEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[tuple[int, ...]]()
    fill = fused.fill
    monkeypatch.setattr(fused, "fill", lambda out, *args: (sent.append(out.shape), fill(out, *args))[1])
    monkeypatch.setattr(encoding, "LEAST_PATCHES", 16)
    tower, projector = encoder.load()
    assert sent
    executors = tower.executor, projector.executor
    assert tower.executor.max_batched_tokens == 16
    sent.clear()
    assert encoder.encode(image(encoder))[0].shape == (12, 32)
    assert tower.executor.max_batched_tokens == 64
    assert (tower.executor, projector.executor) == executors
    assert not sent


def test_an_encoder_that_a_card_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_opened", cache(SmallGpu))
    encoder = ImageEncoder(encoder_file(f"{NAME}/model.gguf"), LoadOptions(device="cuda"))
    expected = "^mmproj.gguf: device 'cuda' cannot run this image encoder: heads of 12 values .* mmproj='off' for text"
    with pytest.raises(RequestError, match=expected):
        encoder.checked()


def test_it_is_refused_when_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_opened", cache(CountingGpu))
    monkeypatch.delattr(plan.Builder, "given")
    with pytest.raises(RequestError, match="cannot run this image encoder: GPUs have no operation 'given'"):
        opened(f"{NAME}/model.gguf", device="cuda", kv="f16", activations="int16", cache_bytes=1 << 22)


@pytest.mark.parametrize("name", NAMES)
def test_every_encoder_of_the_zoo_has_a_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_opened", cache(CountingGpu))
    encoder = ImageEncoder(encoder_file(f"{name}/model.gguf"), LoadOptions(device="cuda"))
    encoder.checked()
    for stage in encoder.load():
        assert stage.executor.plans["hidden"].launches
