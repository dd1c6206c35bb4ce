"""A quantized file that is stopped at any moment: resumed to the same bytes, or gone without a trace."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fewbit as fb
from fewbit.errors import PathError
from fewbit.files.gguf import resumable
from fewbit.quantizing import pieces

from ..models.random_llama import llama


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "source.gguf"
    fb.write_gguf(path, *llama(hidden=256, feed_forward=1024, layers=6, vocab=512, format="f16"))
    return path


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("undisturbed") / "out.gguf"
    fb.quantize_model(source, path, "iq2_s")
    return path.read_bytes()


def command(source: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "fewbit", "quantize", str(source), "-o", str(out), "--format", "iq2_s", "-q"]


@pytest.mark.slow
def test_killed_again_and_again(source: Path, undisturbed: bytes, tmp_path: Path) -> None:
    out, rng = tmp_path / "out.gguf", random.Random(0)
    for _ in range(60):
        process = subprocess.Popen(command(source, out))
        partial = tmp_path / "out.gguf.partial.journal"
        while process.poll() is None and not partial.exists():
            time.sleep(0.001)
        time.sleep(rng.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
        assert not out.exists() or out.read_bytes() == undisturbed
    if not out.exists():
        assert subprocess.run(command(source, out), check=False).returncode == 0
    assert out.read_bytes() == undisturbed
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


class Stopped(BaseException):
    """As if the process was killed: nothing may catch it."""


@pytest.mark.parametrize("after", [0, 1, 7, 30])
def test_stopped_after_some_tensors(
    source: Path, undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    whole, calls = pieces.packed_chunk, []

    def stopping(*args: object) -> object:
        calls.append(args)
        if len(calls) > after:
            raise Stopped
        return whole(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(pieces, "packed_chunk", stopping)
        with pytest.raises(Stopped):
            fb.quantize_model(source, tmp_path / "out.gguf", "iq2_s")
    assert not (tmp_path / "out.gguf").exists()
    made = fb.quantize_model(source, tmp_path / "out.gguf", "iq2_s")
    assert made.resumed >= after
    assert (tmp_path / "out.gguf").read_bytes() == undisturbed
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def stop_after(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(resumable.ResumableGGUF, "commit", stop)
        with pytest.raises(Stopped):
            fb.quantize_model(source, out, format)


def test_damaged_parts_are_written_again(
    source: Path, undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, partial = tmp_path / "out.gguf", tmp_path / "out.gguf.partial"
    stop_after(source, out, monkeypatch, "iq2_s")
    data = bytearray(partial.read_bytes())
    data[-200] ^= 1
    partial.write_bytes(data)
    with open(tmp_path / "out.gguf.partial.journal", "ab") as journal:
        journal.write(b'["blk.0.attn_q.weight", "torn')
    made = fb.quantize_model(source, out, "iq2_s")
    assert 0 < made.resumed < len(made.tensors)
    assert out.read_bytes() == undisturbed


def test_other_options_begin_anew(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.gguf"
    stop_after(source, out, monkeypatch, "q8_0")
    assert fb.quantize_model(source, out, "q4_0").resumed == 0
    assert fb.read_gguf(out).tensors["blk.0.attn_q.weight"].format.name == "q4_0"


def test_killed_after_the_file_got_its_name(
    source: Path, undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, replace = tmp_path / "out.gguf", os.replace

    def stop(a: Path, b: Path) -> None:
        replace(a, b)
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(resumable.os, "replace", stop)
        with pytest.raises(Stopped):
            fb.quantize_model(source, out, "iq2_s")
    fb.quantize_model(source, out, "iq2_s")
    assert out.read_bytes() == undisturbed
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_a_full_disk_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))

    made = subprocess.run(
        command(source, tmp_path / "out.gguf"), preexec_fn=small_files, capture_output=True, text=True, check=False
    )
    assert made.returncode == 1
    assert made.stderr == f"fewbit: {tmp_path / 'out.gguf'}: cannot be written: File too large\n"
    assert not list(tmp_path.iterdir())


def test_too_little_space(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = resumable.shutil._ntuple_diskusage(1, 1, 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(resumable.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(PathError, match=r"out.gguf needs [0-9,]+ bytes, the disk has 0 left"):
        fb.quantize_model(source, tmp_path / "out.gguf", "q8_0")
    assert not list(tmp_path.iterdir())


def test_two_at_once(source: Path, tmp_path: Path) -> None:
    import fcntl

    with open(tmp_path / "out.gguf.partial.journal", "ab") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        with pytest.raises(PathError, match="another process is writing it"):
            fb.quantize_model(source, tmp_path / "out.gguf", "q8_0")
    assert (tmp_path / "out.gguf.partial.journal").exists()
