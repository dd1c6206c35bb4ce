"""Every layer shared by several executors: on one card, and over NCCL, which is a fake where GPUs are emulated."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import numpy as np
import pytest

import fewbit as fb
from fewbit import devices
from fewbit.devices import cuda
from fewbit.devices.batch import Row
from fewbit.devices.tensor_parallel import TensorParallelDevice, TensorParallelExecutor
from fewbit.errors import DataError, DeviceError, ExtraError, RequestError
from fewbit.load_options import LoadOptions
from fewbit.loading import Loaded, place
from fewbit.models import load_model, open_model
from fewbit.ops.collective import FAILED
from fewbit.ops.cuda import collective, gpu, nccl
from fewbit.ops.cuda.values import Launcher, Rows, StepInputs

from ..loading import load
from ..models.random_llama import write_llama
from .test_layers_gpu import CACHE, PROMPTS, ZOO, error, rows

pytestmark = pytest.mark.cuda
TWO: dict[str, Any] = {**CACHE, "device": "cuda,cuda", "tensor_parallel": 2}
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three heads of K and V, and a vocabulary that two cannot share evenly."""
    folder = tmp_path_factory.mktemp("ranks")
    return write_llama(folder / "model.gguf", heads=6, kv_heads=3, dim=32, hidden=64, format="q4_0")


def test_results_are_those_of_one(path: Path) -> None:
    one, two = load(open_model(path), **CACHE), load(open_model(path), **TWO)
    assert isinstance(two.executor, TensorParallelExecutor)
    assert two.executor.runs_ahead
    expected = rows(load(open_model(path), exact=True, max_seqs=4))
    assert error(rows(two), expected) < 1.1 * error(rows(one), expected) + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3moe", "deepseek2", "gemma3", "bert", "lfm2"])
def test_other_architectures(name: str) -> None:
    data = np.load(ZOO / name / "golden.npz")
    tokens = data["tokens"].tolist()
    output = "logits" if "logits" in data else "hidden"
    loaded = load(open_model(ZOO / name / "model.gguf"), **TWO)
    got = loaded.forward([Row(loaded.cache.new(), tokens, len(tokens))], output)
    assert error(got, data["logits" if output == "logits" else "states"]) < 0.06


def texts(path: Path, **options: Any) -> list[Sequence[int]]:
    """Of captured steps, prompts beside others, forks and chains of samplers."""
    with fb.LLM(path, ctx=64, **options) as llm:
        found: list[Sequence[int]] = [one.tokens for one in llm.generate([*PROMPTS, [9, 9], [1]], **GREEDY)]
        found += [one.tokens for one in llm.generate(PROMPTS[0], max_tokens=5, seed=3, n=2).outputs]
        found.append(llm.generate(PROMPTS[1], max_tokens=4, mirostat=2, seed=1).tokens)
        assert llm.loaded.cache.stats().used == 0
    return found


def test_the_text_is_that_of_one() -> None:
    path = ZOO / "llama" / "model.gguf"
    assert texts(path, **TWO) == texts(path, **CACHE)


def test_a_rank_that_fails_ends_its_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with fb.LLM(ZOO / "llama" / "model.gguf", ctx=64, **TWO) as llm:
        expected = [one.tokens for one in llm.generate(PROMPTS, **GREEDY)]
        failing = llm.loaded.executor.executors[1]  # type: ignore[attr-defined]
        run, calls = type(failing)._run, []

        def fail(self: Any, *args: Any) -> Any:
            if self is failing:
                calls.append(self)
                if len(calls) in (2, 3):  # a step ahead is tried again
                    raise DataError("a rank has failed by itself")
            return run(self, *args)

        monkeypatch.setattr(type(failing), "_run", fail)
        with pytest.raises(DataError, match="a rank has failed by itself"):
            llm.generate(PROMPTS, **GREEDY)
        assert [one.tokens for one in llm.generate(PROMPTS, **GREEDY)] == expected


def test_many_rows_are_exchanged_a_piece_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows(load(open_model(path), **TWO))
    monkeypatch.setattr(collective, "BUFFER_BYTES", 4 * 2 * 64 * 5)
    np.testing.assert_array_equal(rows(load(open_model(path), **TWO)), expected)
    monkeypatch.setattr(collective, "BUFFER_BYTES", 4 * 100)
    with pytest.raises(fb.ShapeError, match="rows of 128 values of all ranks do not fit a buffer of 400 bytes"):
        rows(load(open_model(path), **TWO))


class FakeNccl:
    """NCCL's calls on emulated GPUs: what is enqueued is part of a session's captured graphs."""

    def __init__(self, sessions: Sequence[Any]) -> None:
        self.sessions, self.calls = sessions, list[str]()
        self._barrier, self._groups = Barrier(len(sessions)), dict[int, Any]()

    def ncclCommInitAll(self, comms: Any, count: int, ordinals: Any) -> int:  # noqa: N802
        assert [*ordinals] == [session.ordinal for session in self.sessions]
        comms[:] = range(1, count + 1)
        return 0

    def ncclAllGather(self, own: int, buffer: int, count: int, kind: int, comm: Any, stream: Any) -> int:  # noqa: N802
        assert kind == nccl.FLOAT32
        rank = comm.value - 1
        assert own == buffer + 4 * rank * count
        self._enqueue(rank, buffer, [count] * len(self.sessions))
        return 0

    def ncclGroupStart(self) -> int:  # noqa: N802
        return 0

    def ncclGroupEnd(self) -> int:  # noqa: N802
        return 0

    def ncclBroadcast(self, part: int, to: int, count: int, kind: int, root: int, comm: Any, stream: Any) -> int:  # noqa: N802
        assert part == to
        rank = comm.value - 1
        parts = self._groups.setdefault(rank, [])
        parts.append((part, count))
        if root == len(self.sessions) - 1:
            self._enqueue(rank, parts[0][0], [size for _, size in parts])
            del self._groups[rank]
        return 0

    def ncclSend(self, source: int, count: int, kind: int, peer: int, comm: Any, stream: Any) -> int:  # noqa: N802
        self._groups.setdefault(-comm.value, []).append((peer, source))
        return 0

    def ncclRecv(self, target: int, count: int, kind: int, peer: int, comm: Any, stream: Any) -> int:  # noqa: N802
        pairs, rank = self._groups[-comm.value], comm.value - 1
        assert pairs[-1][0] == peer
        if peer == len(self.sessions) - 1:  # targets are behind each other
            self.calls.append("scatter")
            sources, first = [source for _, source in pairs], target - 4 * peer * count
            self.sessions[rank].do(lambda: self._scatter(rank, sources, first, count))
            del self._groups[-comm.value]
        return 0

    def ncclCommAbort(self, comm: Any) -> int:  # noqa: N802
        self._barrier.abort()
        return 0

    def ncclCommDestroy(self, comm: Any) -> int:  # noqa: N802
        self.calls.append("destroyed")
        return 0

    def _enqueue(self, rank: int, buffer: int, counts: list[int]) -> None:
        self.calls.append("gather" if len(set(counts)) == 1 else "broadcasts")
        self.sessions[rank].do(lambda: self._exchange(rank, buffer, counts))

    def _scatter(self, rank: int, sources: list[int], target: int, count: int) -> None:
        own = [ctypes.string_at(source, 4 * count) for source in sources]
        self._sent = getattr(self, "_sent", {}) | {rank: own}
        self._barrier.wait()
        every = b"".join(self._sent[peer][rank] for peer in range(len(sources)))
        self._barrier.wait()
        ctypes.memmove(target, every, len(every))

    def _exchange(self, rank: int, buffer: int, counts: list[int]) -> None:
        first = buffer + 4 * sum(counts[:rank])
        self._parts = getattr(self, "_parts", {}) | {rank: ctypes.string_at(first, 4 * counts[rank])}
        self._barrier.wait()
        every = b"".join(self._parts[one] for one in range(len(counts)))
        self._barrier.wait()
        ctypes.memmove(buffer, every, len(every))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[FakeNccl]:
    if gpu().arch != "emulated":
        pytest.skip("real GPUs have the real NCCL")
    made: list[FakeNccl] = []

    def make(sessions: Sequence[Any]) -> nccl.NcclGroup:
        made.append(FakeNccl(sessions))
        return nccl.NcclGroup(sessions, made[-1])

    monkeypatch.setattr(cuda, "NcclGroup", make)
    return made


def test_nccl_between_cards(path: Path, fake: list[FakeNccl]) -> None:
    """Its calls are captured with the kernels around them."""
    options = {**CACHE, "device": "cuda", "tensor_parallel": 2}
    expected = rows(load(open_model(path), **TWO))
    loaded = load(open_model(path), **options)
    np.testing.assert_array_equal(rows(loaded), expected)
    assert set(fake[0].calls) == {"gather", "broadcasts"}  # sums, and the ragged vocabulary
    llama = ZOO / "llama" / "model.gguf"
    assert texts(llama, **options) == texts(llama, **CACHE)


def test_of_many_rows_each_rank_adds_up_some(path: Path, fake: list[FakeNccl], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as where each adds up all, in pieces too."""
    expected = rows(load(open_model(path), **{**CACHE, "device": "cuda,cuda,cuda", "tensor_parallel": 3}))
    monkeypatch.setattr(collective, "SCATTER_BYTES", 4 * 64 * 2)
    for nbytes in (collective.BUFFER_BYTES, 4 * 2 * 64 * 10):
        monkeypatch.setattr(collective, "BUFFER_BYTES", nbytes)
        loaded = load(open_model(path), **{**CACHE, "device": "cuda", "tensor_parallel": 3})
        np.testing.assert_array_equal(rows(loaded), expected)
        assert set(fake[-1].calls) == {"scatter", "gather", "broadcasts"}


def one_rank(path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """A model on a single GPU, whose rows go through NCCL all the same."""

    def make(device: Any, devices: Sequence[Any]) -> nccl.NcclGroup:
        sessions = [one.device for one in devices]
        fake = FakeNccl(sessions) if gpu().arch == "emulated" else None
        return nccl.NcclGroup(sessions, fake)

    monkeypatch.setattr(cuda.CudaDevice, "make_group", make)
    options = LoadOptions(path, "cuda", max_batched_tokens=64, ctx=64)
    model = load_model(open_model(path))
    device = TensorParallelDevice([devices.get("cuda", options)], model.graph)
    return place(model, device, "f16", 64, 512)


def test_nccl_with_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one where there is a GPU: in prompts, in captured graphs, and all over again."""
    path = ZOO / "llama" / "model.gguf"
    try:
        loaded = one_rank(path, monkeypatch)
    except ExtraError as error:
        pytest.skip(str(error))
    with fb.LLM(path, ctx=64, **CACHE) as plain, fb.LLM.from_parts(loaded, plain.tokenizer) as llm:
        for prompt in PROMPTS:
            assert llm.generate(prompt, **GREEDY).tokens == plain.generate(prompt, **GREEDY).tokens
        executor: Any = loaded.executor.executors[0]  # type: ignore[attr-defined]
        assert any(bucket.graphs for bucket in executor.buckets.values())


def test_calls_of_nccl() -> None:
    """Parts of one size and of different sizes; the end, and what comes after it."""
    try:
        session = gpu().session()
        fake: Any = FakeNccl([session]) if gpu().arch == "emulated" else None
        group = nccl.NcclGroup([session], fake)
    except ExtraError as error:
        pytest.skip(str(error))
    values, out = np.arange(12, dtype=np.float32).reshape(3, 4), session.empty((3, 4))
    x = session.array(values)
    run, step = Launcher(session, session.stream), cast("StepInputs", None)
    collective.all_reduce(run, step, Rows(out.pointer, 4, 4), Rows(x.pointer, 4, 4), tokens=3, group=group, rank=0)
    np.testing.assert_array_equal(out.numpy(), values)
    session.upload(-values, out.pointer)
    collective.all_gather(
        run, step, Rows(out.pointer, 4, 4), Rows(x.pointer, 4, 4), tokens=3, group=group, rank=0, bounds=(0, 4)
    )
    np.testing.assert_array_equal(out.numpy(), values)
    comm, stream = group._comms[0], ctypes.c_void_p(int(session.stream.handle))
    group._check(group._library.ncclGroupStart())
    group._check(group._library.ncclBroadcast(out.pointer, out.pointer, 12, nccl.FLOAT32, 0, comm, stream))
    group._check(group._library.ncclGroupEnd())
    np.testing.assert_array_equal(out.numpy(), values)
    session.upload(-values, out.pointer)
    group.scatter(0, x.pointer, out.pointer, 12)
    np.testing.assert_array_equal(out.numpy(), values)
    group.abort()
    group.abort()
    group.reset()
    with pytest.raises(DeviceError, match="load the model again"):
        group.begin(0)


def test_after_a_failure_nccl_is_over(fake: list[FakeNccl], monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**CACHE, "device": "cuda:0,cuda:1", "tensor_parallel": 2}
    loaded = load(open_model(ZOO / "llama" / "model.gguf"), **options)
    failing: Any = loaded.executor.executors[1]  # type: ignore[attr-defined]

    def fail(*_: Any) -> None:
        raise DataError("by itself")

    with monkeypatch.context() as patch:
        patch.setattr(failing, "_run", fail)
        with pytest.raises(DataError, match="by itself"):
            rows(loaded)
    with pytest.raises(DeviceError, match=f"{FAILED}; load the model again"):
        rows(loaded)


def test_cards_that_do_not_fit() -> None:
    if gpu().arch != "emulated":
        pytest.skip("the machine may have one GPU")
    file = open_model(ZOO / "llama" / "model.gguf")
    with pytest.raises(ExtraError, match=r"needs NCCL|NVIDIA GPUs need the package"):
        load(file, **{**CACHE, "device": "cuda", "tensor_parallel": 2})
    file = open_model(ZOO / "gpt2" / "model.gguf")
    with pytest.raises(RequestError, match="2 heads of K and V"):
        load(file, **{**CACHE, "device": "cuda,cuda,cuda:1", "tensor_parallel": 3})
