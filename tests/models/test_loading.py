"""Loading: what fits into memory, what is refused, which options arrive, whose KV a file holds."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.devices import Device
from fewbit.devices.batch import Row
from fewbit.engine.engine import Engine
from fewbit.errors import FileError, OutOfMemory, RequestError
from fewbit.llm import LLM
from fewbit.loading import Loaded, kv_fingerprint, model_fingerprint
from fewbit.models import open_model
from fewbit.ops.memory import Shortage, available_memory

from ..llm_toy import END, TOKENS
from ..loading import load
from ..text.samples import metadata
from .random_llama import llama, write_llama
from .test_zoo import ZOO

ROOT = Path(__file__).parents[2]
MB = 10**6
LONG = {"context_length": 1 << 20}  # of 256 bytes a token in f16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model.gguf", **LONG)


@pytest.mark.parametrize(
    "options",
    [
        {"kv": 5},
        {"kv": None},
        {"kv": ("q8_0",)},
        {"kv": "f16/f16/f16"},
        {"kv": "/"},
        {"kv": "nope"},
        {"kv": ("f16", "q4_k")},
        {"kv": (1, 2)},
        {"ctx": 1.5},
        {"ctx": "8"},
        {"ctx": 0},
        {"ctx": True},
        {"threads": 1.5},
        {"threads": 0},
        {"threads": 10**6},
        {"repack": "yes"},
        {"exact": "yes"},
        {"activations": 5},
        {"activations": "int8", "exact": True},
        {"device": 5},
        {"device": "abacus"},
        {"device": "numpy", "threads": 2},
        {"device": "numpy", "repack": True},
        {"device": "numpy", "activations": "int8"},
        {"cache_bytes": 1.5},
        {"cache_bytes": 0},
        {"cache_bytes": 100},
        {"cache_bytes": 10**15},
        {"max_seqs": 0},
        {"max_seqs": "many"},
        {"max_batched_tokens": 0},
        {"max_batched_tokens": 0.5},
    ],
    ids=str,
)
def test_wrong_arguments(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(fb.FewbitError) as caught:
        load(fb.read_gguf(path), **options)
    assert isinstance(caught.value, ValueError | TypeError)


def test_formats_of_k_and_v_in_one_text(path: Path) -> None:
    gguf = fb.read_gguf(write_llama(path, hidden=128, heads=2, kv_heads=1))
    layout = load(gguf, kv="q8_0/q4_0").cache.layout
    assert layout == load(gguf, kv=("q8_0", "q4_0")).cache.layout
    assert (layout.k.name, layout.v.name) == ("q8_0", "q4_0")


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_sizes_arrive_where_they_count(path: Path, device: str) -> None:
    loaded = load(fb.read_gguf(path), device=device, cache_bytes=MB, max_seqs=3, max_batched_tokens=40)
    assert MB - 32 * 256 < loaded.cache.nbytes <= MB
    assert loaded.executor.max_batched_tokens == loaded.executor.max_logits == 40
    assert loaded.max_seqs == 3
    with pytest.raises(fb.ShapeError, match="a step takes 40 tokens"):
        loaded.forward([Row(loaded.cache.new(), [1] * 41, 1)])
    assert loaded.forward([Row(loaded.cache.new(), [1] * 40, 1)]).shape == (1, 61)


def test_an_llm_passes_sizes_on(path: Path) -> None:
    known, tensors = llama(vocab=len(TOKENS) + 1)
    words = metadata([*TOKENS, "st"], eos_token_id=np.uint32(END), merges=["s t"])
    fb.write_gguf(path, {**known, **words}, tensors)
    with LLM(path, kv="f16/f32", cache_bytes=MB, max_seqs=3, max_batched_tokens=40) as llm:
        assert llm.loaded.cache.nbytes <= MB
        assert llm.loaded.cache.layout.v.name == "f32"
        assert llm.loaded.executor.max_batched_tokens == 40
        with pytest.raises(RequestError, match="n must be from 1 to 3, got 4"):
            llm.generate("abc", n=4)
        assert len(llm.generate("abc" * 40, n=3, max_tokens=2).outputs) == 3


def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """As if in a memory control group."""
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{nbytes}\n")
    monkeypatch.setattr("fewbit.ops.memory.available_memory", partial(available_memory, tmp_path))


def test_the_cache_is_as_large_as_the_container_allows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = fb.read_gguf(path)
    assert load(gguf).cache.max_length == 8 * 8192
    container(tmp_path, monkeypatch, 100 * MB)
    assert load(gguf).cache.max_length == 8 * 8192  # 17 MB
    assert load(gguf, ctx=1 << 16).cache.max_length == 1 << 16  # one of 17 MB, of 25


def test_what_does_not_fit_is_refused_with_what_would(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = fb.read_gguf(write_llama(path, hidden=128, heads=2, kv_heads=1, **LONG))  # 512 bytes a token
    container(tmp_path, monkeypatch, 400 * MB)
    with pytest.raises(OutOfMemory, match=r"^model.gguf needs 6\d\d MB of memory, and 400 MB is available: ") as caught:
        load(gguf, ctx=1 << 20)
    assert re.search(r'KV cache of 1048576 tokens in f16 537 MB; try ctx=6\d{5} or kv="q8_0"$', str(caught.value))
    (ctx,) = re.findall(r"ctx=(\d+)", str(caught.value))
    assert load(gguf, ctx=int(ctx)).cache.max_length == int(ctx)
    assert load(gguf, ctx=1 << 20, kv="q8_0").ctx == 1 << 20
    with pytest.raises(OutOfMemory, match=r"f16 350 MB; try cache_bytes=3\d{8}$") as caught:
        load(gguf, cache_bytes=350 * MB)
    assert load(gguf, cache_bytes=int(str(caught.value).rpartition("=")[2]))


def test_a_context_that_nobody_asked_for_is_shorter_where_memory_is_short(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = fb.read_gguf(write_llama(path, hidden=128, heads=2, kv_heads=1, **LONG))  # 4.2 MB for 8192 tokens
    monkeypatch.setattr(Device, "reserve_bytes", 0)
    small = {"max_batched_tokens": 1, "max_seqs": 1}
    container(tmp_path, monkeypatch, gguf.file_bytes + 2 * MB)
    expected = r'memory is short: the context is (\d+) tokens instead of 8192; kv="q4_0" makes room for all of them'
    with pytest.warns(UserWarning, match=expected) as caught:
        loaded = load(gguf, **small)
    (ctx,) = re.findall(r"is (\d+) tokens", str(caught[0].message))
    assert loaded.ctx == int(ctx) == loaded.cache.max_length
    assert 2048 < loaded.ctx < 4096
    with pytest.raises(OutOfMemory, match=rf'try ctx={ctx} or kv="q4_0"$'):
        load(gguf, ctx=8192, **small)
    assert load(gguf, kv="q4_0", **small).ctx == 8192


def test_a_context_is_not_shrunk_until_it_is_useless(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = fb.read_gguf(write_llama(path, hidden=128, heads=2, kv_heads=1, **LONG))
    monkeypatch.setattr(Device, "reserve_bytes", 0)
    container(tmp_path, monkeypatch, gguf.file_bytes + 250_000)
    with pytest.raises(OutOfMemory, match=r"KV cache of 8192 tokens in f16 .*; try ctx=256$"):
        load(gguf, max_batched_tokens=1, max_seqs=1)


def test_shorter_steps_are_proposed_where_they_help(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = fb.read_gguf(write_llama(path, hidden=128, heads=2, kv_heads=1, **LONG))
    monkeypatch.setattr(Device, "reserve_bytes", 0)
    container(tmp_path, monkeypatch, gguf.file_bytes + MB)
    with pytest.raises(OutOfMemory, match=r"try max_batched_tokens=\d+$") as caught:
        load(gguf, ctx=1024, max_seqs=1)
    (tokens,) = re.findall(r"max_batched_tokens=(\d+)", str(caught.value))
    assert load(gguf, ctx=1024, max_seqs=1, max_batched_tokens=int(tokens)).ctx == 1024
    with pytest.raises(OutOfMemory, match=r"try max_batched_tokens=32 with ctx=\d+$") as caught:
        load(gguf, ctx=8192, max_seqs=1)
    (ctx,) = re.findall(r"with ctx=(\d+)", str(caught.value))
    assert load(gguf, ctx=int(ctx), max_seqs=1, max_batched_tokens=32).ctx == int(ctx)


def test_decoded_weights_count(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = fb.read_gguf(write_llama(path, hidden=256, feed_forward=512, format="q4_0", **LONG))
    monkeypatch.setattr(Device, "reserve_bytes", 0)
    container(tmp_path, monkeypatch, 2 * gguf.file_bytes)
    small = {"ctx": 8, "max_batched_tokens": 1, "max_seqs": 1}
    assert load(gguf, **small).ctx == 8
    with pytest.raises(OutOfMemory, match=r'try device="cpu", which keeps weights packed$'):
        load(gguf, device="numpy", **small)


def test_weights_that_do_not_fit(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = fb.read_gguf(path)
    monkeypatch.setattr(Device, "reserve_bytes", 0)
    container(tmp_path, monkeypatch, gguf.file_bytes + 1000)
    with pytest.raises(OutOfMemory, match=r"try a model file of at most 0 MB$"):
        load(gguf, max_batched_tokens=1)


def test_a_process_with_little_memory_is_told_what_fits(path: Path) -> None:
    program = f"""
import re, resource
import fewbit as fb
from fewbit.devices.batch import Row
from fewbit.load_options import LoadOptions
from fewbit.loading import load
from fewbit.ops.memory import address_space
gguf = fb.read_gguf({str(path)!r})
load(gguf, LoadOptions(threads=1, ctx=64))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {200 * MB},) * 2)
try:
    load(gguf, LoadOptions(threads=1, ctx=1 << 20))
except fb.FewbitError as error:
    print(error)
    ctx = int(re.search(r"try ctx=(\\d+)", str(error)).group(1))
loaded = load(gguf, LoadOptions(threads=1, ctx=ctx))
sequence = loaded.cache.new()
for _ in range(20):
    loaded.forward([Row(sequence, [1] * 500, 1)])
print(loaded.cache.length(sequence))
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    error, length = done.stdout.splitlines()
    assert re.fullmatch(r"model.gguf needs 3\d\d MB of memory, and [12]\d\d MB is available: .*; try ctx=\d+", error)
    assert length == "10000"


def test_a_cache_that_no_machine_can_hold() -> None:
    with pytest.raises(
        OutOfMemory, match=r"a KV cache of \d+.0 GB does not fit; .* room for about \d+ tokens"
    ) as caught:
        fb.KVCache(layers=80, kv_heads=64, dim=128, tokens=10**9)
    assert isinstance(caught.value, ValueError)


def test_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    available = [200 * MB, 100 * MB, 200 * MB]
    monkeypatch.setattr("fewbit.ops.memory.available_memory", available.pop)
    is_short = Shortage(150 * MB, every_seconds=0)
    assert [is_short(), is_short(), is_short()] == [False, True, False]
    rarely = Shortage(150 * MB, every_seconds=1000)
    available[:] = [0, 200 * MB]
    assert [rarely(), rarely()] == [False, False]
    assert available == [0]


def filled(loaded: Loaded) -> int:
    sequence = loaded.cache.new()
    loaded.forward([Row(sequence, [1, 2, 3, 4], 1)])
    return sequence


def test_saved_kv_carries_the_fingerprint_of_its_model(path: Path, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other.gguf", seed=1, **LONG)
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(path.read_bytes())
    first, second, again = (load(fb.read_gguf(one), repack=i < 2) for i, one in enumerate((path, other, renamed)))
    first.cache.save(filled(first), tmp_path / "saved.kv")
    assert again.cache.length(again.cache.load(tmp_path / "saved.kv")) == 4
    with pytest.raises(FileError, match=r"saved by another model: fingerprint '[0-9a-f]{32}', not '[0-9a-f]{32}'"):
        second.cache.load(tmp_path / "saved.kv")
    assert second.cache.load(tmp_path / "saved.kv", fingerprint="")  # who knows better


def test_any_change_of_a_model_changes_its_fingerprint(tmp_path: Path) -> None:
    found = set()
    for changed in ({}, {"seed": 1}, {"format": "q4_0"}, {"rope__freq_base": 5e5}, {"context_length": 64}):
        found.add(model_fingerprint(fb.read_gguf(write_llama(tmp_path / "model.gguf", **changed))))
    assert len(found) == 5


@pytest.mark.parametrize("kv", ["f16", "f8_e4m3", "q8_0", "f32"])
def test_nan_ends_one_request_of_a_step_alone(tmp_path: Path, kv: str) -> None:
    """The embedding of the last token is NaN: so are K, V and logits of whoever has it in its text."""
    known, tensors = llama(hidden=128, heads=2, kv_heads=1, vocab=61, format="f32")
    table = tensors["token_embd.weight"].dequantize()
    table[60] = np.nan
    fb.write_gguf(tmp_path / "model.gguf", known, {**tensors, "token_embd.weight": table})
    loaded = load(fb.read_gguf(tmp_path / "model.gguf"), kv=kv, cache_bytes=40 * 32 * 2 * 128 * 2 * 4)
    engine = Engine(loaded.executor, loaded.cache, loaded.ctx)
    good, bad = [[1, 2, 3], [4, 5, 6]], [7, 60, 9]

    def run(prompts: list[list[int]]) -> list[list[int]]:
        requests = [engine.generation(prompt, max_tokens=40, seed=1, logit_bias={60: -np.inf})[0] for prompt in prompts]
        for request in requests:
            engine.add([request])
        while engine.step():
            pass
        failed = [request for request in requests if request.finish_reason == "error"]
        assert [request.tokens[:3] for request in failed] == [prompt for prompt in prompts if 60 in prompt]
        assert all(isinstance(request.error, fb.DataError) for request in failed)
        return [request.output_tokens for request in requests]

    first, _, second = run([good[0], [7, 8, 9], good[1]])
    assert run([good[0], bad, good[1]]) == [first, [], second]
    assert run([[7, 60, 9], bad, bad])[0] == []
    assert run([good[0], [7, 8, 10], good[1]])[::2] == [first, second]  # in pages that held NaN
    assert loaded.cache.stats().used == 0
    with pytest.raises(RequestError, match="tokens must be from 0 to 60, got 61"):
        engine.generation([61])


def test_saved_kv_of_long_sequences_is_another_one() -> None:
    file = open_model(ZOO / "phi3-longrope" / "model.gguf")
    original = file.config["rope.scaling.original_context_length"]
    assert kv_fingerprint(file, original) == model_fingerprint(file)
    assert kv_fingerprint(file, original + 1) != model_fingerprint(file)
