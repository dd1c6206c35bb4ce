"""How many outputs a step runs by default, by what there is of a device's memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import fewbit as fb
from fewbit.cache.layout import make_layout
from fewbit.devices.fitting import SEQ_TOKENS, MemoryPlan, cache_tokens, choose_seqs
from fewbit.models import LoadedModel, load_model
from fewbit.ops.specs import RecurrentSpec

from ..loading import load
from ..models.random_llama import write_llama
from .test_splitting import Card, plan

CTX = 4096


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = tmp_path_factory.mktemp("seqs") / "model.gguf"
    return load_model(fb.read_gguf(write_llama(path, layers=6)))


def card(model: LoadedModel, memory_bytes: int) -> MemoryPlan:
    """A plan for a card that takes 256 outputs."""
    found = plan(model, memory_bytes)
    assert isinstance(found.device, Card)
    found.device.max_seqs = 256
    return found


def memory_for(model: LoadedModel, seqs: int) -> int:
    """A quarter of which has room for some tokens of so many outputs."""
    return 4 * replace(card(model, 0), max_seqs=seqs).cache_bytes(seqs * SEQ_TOKENS)


@pytest.mark.parametrize("seqs", [64, 96, 160, 256])
def test_as_many_as_memory_has_room_for(model: LoadedModel, seqs: int) -> None:
    found = card(model, memory_for(model, seqs))
    assert choose_seqs([found], CTX, None) == seqs
    assert choose_seqs([replace(found, memory_bytes=found.memory_bytes - 4)], CTX, None) == max(64, seqs - 32)


def test_the_cache_has_room_for_all_of_them(model: LoadedModel) -> None:
    found = replace(card(model, memory_for(model, 256)), max_seqs=256)
    assert cache_tokens([found], CTX) == 256 * SEQ_TOKENS
    assert cache_tokens([replace(found, max_seqs=64)], CTX) == 8 * CTX
    assert cache_tokens([found], 128) == 256 * 128


def test_short_sequences_need_less(model: LoadedModel) -> None:
    found = card(model, memory_for(model, 256) // 4)
    assert choose_seqs([found], CTX, None) == 64
    assert choose_seqs([found], SEQ_TOKENS // 4, None) == 256


def test_the_size_of_the_cache_counts_where_it_is_given(model: LoadedModel) -> None:
    found = card(model, 1 << 40)
    assert choose_seqs([found], CTX, replace(found, max_seqs=128).cache_bytes(128 * SEQ_TOKENS)) == 128
    assert choose_seqs([found], CTX, 1) == 64


def test_states_of_recurrent_layers_are_of_each(model: LoadedModel) -> None:
    specs = [*model.graph.specs[:-1], RecurrentSpec(1 << 20)]
    found = replace(card(model, 4 * (2 * 128 + 33) << 20), kv_layout=make_layout(specs))
    assert 64 < choose_seqs([found], CTX, None) < 128


def test_cards_that_share_the_layers(model: LoadedModel) -> None:
    half = card(model, memory_for(model, 256) // 2)
    assert choose_seqs([half], CTX, None) == 128
    assert choose_seqs([half, half], CTX, None) == 256


def test_other_devices_run_as_many_as_usual(model: LoadedModel, tmp_path: Path) -> None:
    assert choose_seqs([plan(model, 1 << 40)], CTX, None) == 64
    loaded = load(fb.read_gguf(write_llama(tmp_path / "model.gguf")), max_batched_tokens=32)
    assert loaded.max_seqs == 32
