"""The JavaScript runtime reads GGUF files as `fewbit.files.gguf` does, and damaged ones end in a sentence."""

from __future__ import annotations

import json
import random
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.browser import AdapterLimits, DescribedFile, Description, make_plan, plan
from fewbit.files.gguf import read_gguf, write_gguf
from fewbit.formats import all_formats, get
from fewbit.models import open_model
from fewbit.ops.webgpu.decoders import device_format
from fewbit.ops.webgpu.device import Memory
from fewbit.ops.webgpu.planned import PlannedGpu
from fewbit.tensor import QuantTensor

from ..models.random_llama import llama
from .described import described, is_small
from .runtime import call

PLANNED = (
    "llama", "gemma3", "qwen3", "gemma2", "smollm3", "olmo2", "llama-llama3", "qwen3moe", "mixtral", "qwen35", "lfm2",
    "lfm2moe", "granitehybrid", "mistral3", "gpt-oss", "deepseek2",
)  # fmt: skip
ZOO = Path(__file__).parents[1] / "zoo"
IN_FILES = [f.name for f in all_formats().values() if f.gguf is not None and device_format(f) == f]


def test_headers() -> None:
    paths = [ZOO / name / "model.gguf" for name in ("llama", "gemma3", "gpt-oss")]
    for path, found in zip(paths, call(*(("header", {"path": str(path)}) for path in paths)), strict=True):
        with read_gguf(path) as file:
            plain = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in file.metadata.items()}
            plain = {
                key: list(value) if not isinstance(value, (str, int, float)) else value for key, value in plain.items()
            }
            assert found["metadata"] == plain
            assert [(one["name"], tuple(one["shape"]), one["offset"]) for one in found["tensors"]] == [
                (info.name, info.shape, info.offset) for info in file.infos.values()
            ]
            ours = described(file)
            assert found["described"] == {**ours, "tensors": [list(one) for one in ours["tensors"]]}


def test_every_type_of_metadata(tmp_path: Path) -> None:
    values = {
        "u8": np.uint8(255), "i8": np.int8(-128), "u16": np.uint16(65535), "i16": np.int16(-5),
        "u32": np.uint32(2**32 - 1),
        "i32": np.int32(-7), "f32": np.float32(0.1), "u64": np.uint64(2**40), "i64": np.int64(-(2**40)), "f64": 0.25,
        "flag": True, "text": "é😀", "list": np.arange(3, dtype=np.int16), "texts": ["a", ""],
    }  # fmt: skip
    write_gguf(tmp_path / "a.gguf", {"general.architecture": "x", **values}, {"w": np.ones((2, 32), np.float32)})
    (found,) = call(("header", {"path": str(tmp_path / "a.gguf")}))
    plain = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in values.items()}
    assert {key: found["metadata"][key] for key in plain} == plain


def test_damaged_files() -> None:
    """Whatever is changed in a header, the answer is the file or a sentence; Python refuses what it refuses."""
    path, generator = ZOO / "llama/model.gguf", random.Random(0)
    whole = path.stat().st_size
    changes: list[dict[str, Any]] = [{"cut": cut, "bytes": []} for cut in (0, 3, 4, 23, 24, 100, 4000, 9000)]
    for _ in range(150):
        places = [
            (generator.randrange(13_000), generator.choice((0, 1, 127, 255))) for _ in range(generator.randrange(1, 4))
        ]
        changes.append({"cut": whole, "bytes": places})
    changes += [{"cut": whole, "bytes": [(at, 255) for at in range(first, first + 8)]} for first in range(4, 400, 7)]
    (found,) = call(("damaged", {"path": str(path), "changes": changes}))
    assert [one for one in found if one.startswith("UNEXPECTED")] == []
    assert all(found[:8])
    assert len([one for one in found if one]) > 50
    assert all("\n" not in one and len(one) < 400 for one in found)


class RecordingGpu(PlannedGpu):
    """Keeps what it is sent, by the id of each buffer."""

    keeps_bytes = True

    def __init__(self, *sizes: Any, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.held: dict[int, tuple[Memory, np.ndarray[Any, Any]]] = {}

    def upload(self, data: Any, memory: Memory, offset: int = 0) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        _, held = self.held.setdefault(id(memory), (memory, np.zeros(memory.nbytes, np.uint8)))
        held[offset : offset + raw.size] = raw


def planned(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[str, Any], list[list[Any]]]:
    """What asks the runtime for the bytes of a plan's buffers, and sizes and hashes of those that a device is sent."""
    made: list[RecordingGpu] = []

    def make(*sizes: Any, **options: Any) -> RecordingGpu:
        made.append(RecordingGpu(*sizes, **options))
        return made[-1]

    monkeypatch.setattr(plan, "PlannedGpu", make)
    found = path.with_suffix(".json")
    found.write_text(json.dumps(make_plan(open_model(path), AdapterLimits(1 << 20, 1 << 24), ctx=32)))
    sent = sorted([memory.nbytes, sha256(raw.tobytes()).hexdigest()] for memory, raw in made[0].held.values())
    return ("buffers", {"plan": str(found), "path": str(path)}), sent


def any_bytes(shape: tuple[int, ...], fmt: str, generator: np.random.Generator) -> QuantTensor:
    raw = generator.integers(0, 256, shape[0] * get(fmt).row_bytes(shape[1]), np.uint8)
    return QuantTensor.from_bytes(raw, shape, fmt)


@pytest.mark.parametrize(
    ("formats", "vocab"), [(IN_FILES, 33), (["q8_0", "q6_k", "f32"], 4500)], ids=["every format", "split matrices"]
)
def test_buffers_hold_what_a_device_is_sent(
    formats: list[str], vocab: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, generator = [], np.random.default_rng(0)
    metadata, usual = llama(hidden=256, feed_forward=256, vocab=vocab, layers=1)
    for fmt in formats:
        tensors = {name: w if w.ndim == 1 else any_bytes(w.shape, fmt, generator) for name, w in usual.items()}
        write_gguf(tmp_path / f"{fmt}.gguf", {**metadata, "tokenizer.ggml.model": "llama"}, tensors)
        both.append(planned(tmp_path / f"{fmt}.gguf", monkeypatch))
    for fmt, found, (_, sent) in zip(formats, call(*(asked for asked, _ in both)), both, strict=True):
        assert sorted(found) == sent, fmt
        assert len(sent) > (9 if vocab > 33 else 5)


def test_buffers_of_experts_states_and_computed_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("qwen3moe", "gpt-oss", "qwen35", "lfm2moe", "nemotron_h", "mistral3", "llama4", "gemma3n")
    paths = [Path(shutil.copy(ZOO / name / "model.gguf", tmp_path / f"{name}.gguf")) for name in names]
    both = [planned(path, monkeypatch) for path in paths]
    for name, found, (_, sent) in zip(names, call(*(asked for asked, _ in both)), both, strict=True):
        assert sorted(found) == sent, name


def test_a_described_file_gives_the_plan_of_the_file() -> None:
    for name in PLANNED:
        file = open_model(ZOO / name / "model.gguf")
        given = described(file)
        there = DescribedFile(Description(given["metadata"], given["tensors"], vectors_of(file)))
        assert make_plan(there, AdapterLimits(1 << 24, 1 << 25, subgroups=True)) == make_plan(
            file, AdapterLimits(1 << 24, 1 << 25, subgroups=True)
        ), name


def vectors_of(file: Any) -> dict[str, bytes]:
    return {name: file.tensors[name].to_bytes() for name, info in file.infos.items() if is_small(name, info)}
