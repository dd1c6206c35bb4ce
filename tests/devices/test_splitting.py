"""How many layers a GPU takes, by what there is of its memory; graphs that are cut in two. No GPU is needed here."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import fewbit as fb
from fewbit.cache.layout import make_layout
from fewbit.devices.fitting import Needs, cache_tokens
from fewbit.devices.hybrid import part_of
from fewbit.devices.splitting import check_layers, of_layers, split
from fewbit.errors import DeviceError, OutOfMemory, RequestError
from fewbit.loading import load
from fewbit.models import LoadedModel, load_model
from fewbit.ops.cuda.device import cuda_error
from fewbit.ops.cut import cut, layers_of, weights_of

from ..models.random_llama import write_llama

LAYERS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = tmp_path_factory.mktemp("splitting") / "model.gguf"
    return load_model(fb.read_gguf(write_llama(path, layers=LAYERS)))


def needs(model: LoadedModel, memory_bytes: int) -> Needs:
    weights = sum(w.nbytes for w in weights_of(model.graph).values())
    return Needs(
        name="model.gguf", layout=make_layout(model.graph.specs), memory_bytes=memory_bytes, file_bytes=weights,
        reserve_bytes=0, row_bytes=0, logits_bytes=0, max_seqs=1, step_tokens=1, kind="GPU memory",
        elsewhere='device="cpu"',
    )  # fmt: skip


def memory_for(model: LoadedModel, layers: int, tokens: int) -> int:
    of = of_layers(needs(model, 0), model.graph, layers)
    return of.file_bytes + of.cache_bytes(tokens)


def test_layers_share_weights_and_cache(model: LoadedModel) -> None:
    whole = needs(model, 0)
    parts = [of_layers(whole, model.graph, n) for n in range(1, LAYERS)]
    steps = {b.file_bytes - a.file_bytes for a, b in pairwise(parts)}
    assert len(steps) == 1
    assert [part.cache_bytes(64) for part in parts] == [whole.cache_bytes(64) * n // LAYERS for n in range(1, LAYERS)]
    assert all(part.pages(100) == whole.pages(100) for part in parts)


@pytest.mark.parametrize("layers", range(1, LAYERS))
def test_as_many_layers_as_fit(model: LoadedModel, layers: int) -> None:
    of = needs(model, memory_for(model, layers, 256))
    with pytest.warns(UserWarning, match=f"{layers} of {LAYERS} layers run there, the others on the CPU"):
        count, chosen = split(of, model.graph, None, 256)
    assert count == layers
    assert cache_tokens(chosen, 256) >= 256


def test_all_that_fit_need_no_warning(model: LoadedModel) -> None:
    of = needs(model, 1 << 30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert split(of, model.graph, None, 256) == (None, of)
        assert split(of, model.graph, LAYERS, 256) == (None, of)
        assert split(of, model.graph, 2, 256)[0] == 2


def test_what_would_fit_is_said(model: LoadedModel) -> None:
    of = needs(model, memory_for(model, 3, 256))
    _, chosen = split(of, model.graph, 5, 256)
    with pytest.raises(OutOfMemory, match=r"needs .* of GPU memory, .*try .*gpu_layers=3$"):
        cache_tokens(chosen, 256)
    _, chosen = split(of, model.graph, LAYERS, 256, 1000)
    with pytest.raises(OutOfMemory, match=r"gpu_layers=\d$"):
        cache_tokens(chosen, 256)
    count, chosen = split(needs(model, 1000), model.graph, None, 256)
    assert count is None
    with pytest.raises(OutOfMemory, match=r'^one layer of model.gguf needs .* or device="cpu"$'):
        cache_tokens(chosen, 256)


def test_the_size_of_a_cache_is_that_of_all_layers(model: LoadedModel) -> None:
    whole = needs(model, 1 << 30)
    size = whole.cache_bytes(256)
    for layers in range(1, LAYERS):
        chosen = of_layers(whole, model.graph, layers)
        assert cache_tokens(chosen, 64, size, whole) == cache_tokens(whole, 64, size) == 256
    part = memory_for(model, 3, 256)
    assert split(needs(model, part), model.graph, 3, 1, size) == (3, of_layers(needs(model, part), model.graph, 3))
    with pytest.warns(UserWarning, match="3 of 6 layers run there"):
        assert split(needs(model, part), model.graph, None, 1, size)[0] == 3
    without = replace(whole, layout=part_of(whole.layout, set()))  # as where the last layers are recurrent
    assert cache_tokens(without, 64, size, whole) == 256
    with pytest.raises(RequestError, match=f"a page of the KV cache, which takes {whole.cache_bytes(1)} bytes"):
        cache_tokens(without, 64, 1, whole)


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
    with pytest.raises(RequestError, match=f"gpu_layers is for device 'cuda', not for '{device}'; leave it out"):
        load(file, device=device, gpu_layers=1)


@pytest.mark.parametrize("layers", [-1, 1.5, "3"])
def test_layers_are_counted(layers: object) -> None:
    with pytest.raises(fb.FewbitError, match="gpu_layers"):
        check_layers("cuda", layers)  # type: ignore[arg-type]


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
