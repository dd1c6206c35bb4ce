"""How many layers a GPU takes, by what there is of its memory; graphs that are cut in two. No GPU is needed here."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import fewbit as fb
from fewbit.cache.layout import make_layout
from fewbit.devices.fitting import MemoryPlan, cache_tokens
from fewbit.devices.hybrid import part_of
from fewbit.devices.numpy import NumpyDevice
from fewbit.devices.splitting import part_plan, split
from fewbit.errors import DeviceError, OutOfMemory, RequestError
from fewbit.load_options import LoadOptions
from fewbit.models import LoadedModel, load_model
from fewbit.ops.cuda.device import cuda_error
from fewbit.ops.cut import cut, layers_of, weights_of

from ..loading import load
from ..models.random_llama import write_llama

LAYERS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = tmp_path_factory.mktemp("splitting") / "model.gguf"
    return load_model(fb.read_gguf(write_llama(path, layers=LAYERS)))


class Card(NumpyDevice):
    """A GPU with so much memory, for plans alone."""

    name = "card"
    memory_kind = "GPU memory"
    alternative = 'device="cpu"'
    takes_rows = True
    reserve_bytes = 0

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.nbytes = nbytes

    def memory_bytes(self, file_bytes: int, layout: str) -> int:
        return self.nbytes


def plan(model: LoadedModel, memory_bytes: int) -> MemoryPlan:
    return MemoryPlan(
        model="model.gguf", place="card", device=Card(memory_bytes), layers=LAYERS, weight_layout="rows",
        kv_layout=make_layout(model.graph.specs), memory_bytes=memory_bytes,
        file_bytes=sum(w.nbytes for w in weights_of(model.graph).values()), row_bytes=0, logits_bytes=0, max_seqs=1,
        step_tokens=1, alternative=Card.alternative,
    )  # fmt: skip


def last_layers(model: LoadedModel, whole: MemoryPlan, layers: int) -> MemoryPlan:
    return part_plan(whole, cut(model.graph, layers)[1])


def plans(model: LoadedModel, *memory_bytes: int) -> list[MemoryPlan]:
    """Of a host with enough memory, then of cards."""
    return [plan(model, 1 << 30), *(plan(model, nbytes) for nbytes in memory_bytes)]


def memory_for(model: LoadedModel, layers: int, tokens: int) -> int:
    part = last_layers(model, plan(model, 0), layers)
    return part.file_bytes + part.cache_bytes(tokens)


def test_layers_share_weights_and_cache(model: LoadedModel) -> None:
    whole = plan(model, 0)
    parts = [last_layers(model, whole, n) for n in range(1, LAYERS)]
    steps = {b.file_bytes - a.file_bytes for a, b in pairwise(parts)}
    assert len(steps) == 1
    assert [part.cache_bytes(64) for part in parts] == [whole.cache_bytes(64) * n // LAYERS for n in range(1, LAYERS)]
    assert all(part.pages(100) == whole.pages(100) for part in parts)


@pytest.mark.parametrize("layers", range(1, LAYERS))
def test_as_many_layers_as_fit(model: LoadedModel, layers: int) -> None:
    both = plans(model, memory_for(model, layers, 256))
    with pytest.warns(UserWarning, match=f"{layers} of {LAYERS} layers run there, the others on the CPU"):
        found = split(both, model.graph, None, 256)
    assert [one.layers for one in found] == [LAYERS - layers, layers]
    assert cache_tokens(found, 256) >= 256


def test_all_that_fit_need_no_warning(model: LoadedModel) -> None:
    both = plans(model, 1 << 30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert split(both, model.graph, None, 256) == both[1:]
        assert split(both, model.graph, LAYERS, 256) == both[1:]
        assert [one.layers for one in split(both, model.graph, 2, 256)] == [LAYERS - 2, 2]
        assert split(both[:1], model.graph, None, 256) == both[:1]


def test_several_cards_share_the_layers(model: LoadedModel) -> None:
    both = plans(model, memory_for(model, 2, 256), memory_for(model, 3, 256))
    with pytest.warns(UserWarning, match="layers run there"):
        found = split(both, model.graph, None, 256)
    assert [one.layers for one in found] == [1, 2, 3]
    assert sum(one.cache_bytes(256) for one in found) == both[0].cache_bytes(256)
    assert cache_tokens(found, 256, both[0].cache_bytes(512) // 2) == 256


def test_what_would_fit_is_said(model: LoadedModel) -> None:
    both = plans(model, memory_for(model, 3, 256))
    with pytest.raises(OutOfMemory, match=r"needs .* of GPU memory, .*try .*gpu_layers=3$"):
        cache_tokens(split(both, model.graph, 5, 256), 256)
    with pytest.raises(OutOfMemory, match=r"gpu_layers=\d$"):
        cache_tokens(split(both, model.graph, LAYERS, 256, 1000), 256)
    found = split(plans(model, 1000), model.graph, None, 256)
    assert len(found) == 1
    with pytest.raises(OutOfMemory, match=r'^one layer of model.gguf needs .* or device="cpu"$'):
        cache_tokens(found, 256)


def test_the_host_must_hold_its_layers_too(model: LoadedModel) -> None:
    host, card = plan(model, 1000), plan(model, 1 << 30)
    with pytest.raises(OutOfMemory, match="and 0 MB is available"):
        cache_tokens(split([host, card], model.graph, 2, 256), 256)


def test_the_size_of_a_cache_is_that_of_all_layers(model: LoadedModel) -> None:
    both = plans(model, 1 << 30)
    size = both[0].cache_bytes(256)
    for layers in range(1, LAYERS):
        found = split(both, model.graph, layers, 64, size)
        assert cache_tokens(found, 64, size) == cache_tokens(both[:1], 64, size) == 256
    both = plans(model, memory_for(model, 3, 256))
    assert [one.layers for one in split(both, model.graph, 3, 1, size)] == [3, 3]
    with pytest.warns(UserWarning, match="3 of 6 layers run there"):
        assert split(both, model.graph, None, 1, size)[1].layers == 3
    none = replace(both[0], kv_layout=part_of(both[0].kv_layout, set()))  # as where the last layers are recurrent
    assert cache_tokens([both[0], none], 64, size) == 256


def test_graphs_are_cut_where_one_value_goes_on(model: LoadedModel) -> None:
    for layers in range(1, LAYERS):
        first, rest = cut(model.graph, layers)
        assert layers_of(first.nodes) == set(range(LAYERS - layers))
        assert layers_of(rest.nodes) == set(range(LAYERS - layers, LAYERS))
        assert rest.nodes[0].outputs == (first.result,)
        assert not set(weights_of(first)) & set(weights_of(rest))
    with pytest.raises(RequestError, match="cannot be split with 7 of its 6 layers on the GPU"):
        cut(model.graph, 7)


def test_parts_of_a_layout_keep_the_groups_of_all(model: LoadedModel) -> None:
    layout = make_layout(model.graph.specs)
    part = part_of(layout, {4, 5})
    assert part.group_of == {4: 0, 5: 0}
    assert [group.layers for group in part.groups] == [(4, 5)]
    assert part.groups[0].page_bytes * LAYERS == layout.groups[0].page_bytes * 2


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_other_devices_have_no_such_layers(tmp_path: Path, device: str) -> None:
    file = fb.read_gguf(write_llama(tmp_path / "model.gguf"))
    with pytest.raises(
        RequestError, match=f"gpu_layers is for devices 'cuda' and 'webgpu', not for '{device}'; leave it out"
    ):
        load(file, device=device, gpu_layers=1)


@pytest.mark.parametrize("layers", [-1, 1.5, "3"])
def test_layers_are_counted(layers: object) -> None:
    with pytest.raises(fb.FewbitError, match="gpu_layers"):
        LoadOptions(device="cuda", gpu_layers=layers)  # type: ignore[arg-type]


def test_no_layer_on_the_gpu_is_the_cpu(tmp_path: Path) -> None:
    file = fb.read_gguf(write_llama(tmp_path / "model.gguf"))
    loaded = load(file, device="cuda", gpu_layers=0, threads=1)
    assert type(loaded.executor).__name__ == "CpuExecutor"


def test_errors_of_cuda_are_one_sentence() -> None:
    error = cuda_error("CUDA_ERROR_ILLEGAL_ADDRESS: While executing a kernel,\n  an illegal address was met.")
    assert isinstance(error, DeviceError)
    said = "CUDA_ERROR_ILLEGAL_ADDRESS: While executing a kernel, an illegal address was met"
    assert str(error) == f"the GPU reports an error: {said}"
    assert isinstance(cuda_error("CUDA_ERROR_OUT_OF_MEMORY"), OutOfMemory)
