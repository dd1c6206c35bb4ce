"""Machines without what a GPU needs: one sentence says what is missing, to those who ask for one and to the doctor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit import devices
from fewbit.errors import ExtraError, FewbitError, RequestError
from fewbit.ops.cuda import cards

from ..cli.tiny import write_tiny
from .driver import NoDriver, Status, install, make_driver, without_packages

pytest.importorskip("click")  # a machine that was lent may have less than what fewbit is installed with
from click.testing import CliRunner

from fewbit.cli import main

H200, OLD = ("NVIDIA H200", (9, 0)), ("Tesla T4", (7, 5))
Patch = pytest.MonkeyPatch


def machine(*given: Any) -> Callable[[Patch], None]:
    return lambda patch: install(patch, make_driver(*given))


MISSING: dict[str, tuple[Callable[[Patch], None], str, type[FewbitError], str]] = {
    "packages": (without_packages, "cuda", ExtraError, r"'cuda'\); install it: pip install 'fewbit\[cuda\]'"),
    "driver": (lambda p: install(p, NoDriver()), "cuda", ExtraError, "there is no NVIDIA driver here, .* device='cpu'"),
    "GPU": (machine(), "cuda", ExtraError, "finds no GPU here, see `nvidia-smi` .* device='cpu'"),
    "GPU that may be seen": (
        machine([], Status.CUDA_ERROR_NO_DEVICE), "cuda", ExtraError, "finds no GPU here",
    ),
    "new GPU": (
        machine([OLD]), "cuda", ExtraError, "Tesla T4 has compute capability 7.5, .* 8.0 at least",
    ),
    "second GPU": (
        machine([H200]), "cuda:7", RequestError,
        "no device 'cuda:7'; this machine has one, 'cuda:0'",
    ),
    "eighth GPU": (
        machine([H200] * 4), "cuda:7", RequestError, "this machine has 4, 'cuda:0' to 'cuda:3'",
    ),
    "working driver": (
        machine([H200], Status.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH), "cuda", ExtraError,
        "driver gives CUDA_ERROR_SYSTEM_DRIVER_MISMATCH for cuInit, see `nvidia-smi`",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_is_one_sentence(what: str, monkeypatch: Patch, tiny: str) -> None:
    prepare, device, kind, sentence = MISSING[what]
    prepare(monkeypatch)
    with pytest.raises(kind, match=sentence) as raised:
        fb.LLM(tiny, device=device)
    assert "\n" not in str(raised.value)
    with pytest.raises(kind, match=sentence):
        fb.quantize(np.ones((1, 32), np.float32), "q8_0").to(device)


@pytest.mark.parametrize("what", MISSING)
def test_the_command_says_it_too(what: str, monkeypatch: Patch, tiny: str) -> None:
    prepare, device, _, _ = MISSING[what]
    prepare(monkeypatch)
    result = CliRunner().invoke(main, ["run", tiny, "hi", "--device", device, "--max-tokens", "1"])
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.output


@pytest.mark.parametrize("what", ["packages", "driver", "GPU", "new GPU"])
def test_auto_is_then_the_cpu(what: str, monkeypatch: Patch) -> None:
    MISSING[what][0](monkeypatch)
    assert devices.find_best() == "cpu"


def doctor(*options: str) -> str:
    return CliRunner().invoke(main, ["doctor", *options]).stdout


def test_the_doctor_shows_every_gpu(monkeypatch: Patch) -> None:
    install(monkeypatch, make_driver([H200, ("NVIDIA A100", (8, 0))]))
    found = json.loads(doctor("--json"))["gpus"]
    assert found["driver"] == "13.2"
    assert found["nvrtc"] == "13.4"
    assert found["missing"] is None
    sizes = {"free_bytes": 100 << 30, "total_bytes": 140 << 30}
    assert found["cards"] == [
        {"name": "NVIDIA H200", "compute_capability": "9.0", **sizes},
        {"name": "NVIDIA A100", "compute_capability": "8.0", **sizes},
    ]
    text = " ".join(doctor().split())
    assert "GPU cuda:0 NVIDIA H200, compute capability 9.0, 100.0 of 140.0 GiB free" in text
    assert "GPU cuda:1 NVIDIA A100, compute capability 8.0" in text
    assert "CUDA driver for 13.2, NVRTC 13.4" in text


@pytest.mark.parametrize("what", ["packages", "driver", "GPU", "new GPU"])
def test_the_doctor_says_why_there_is_none(what: str, monkeypatch: Patch) -> None:
    prepare, _, _, _ = MISSING[what]
    prepare(monkeypatch)
    found: Any = json.loads(doctor("--json"))["gpus"]
    assert found["missing"] == cards.describe().missing
    assert "\n" not in found["missing"]
    assert " ".join(found["missing"].split()) in " ".join(doctor().split())
    assert [card["name"] for card in found["cards"]] == (["Tesla T4"] if what == "new GPU" else [])


def test_nothing_of_cuda_is_imported_unless_it_is_asked_for(tiny: str) -> None:
    code = f"""
import sys
import fewbit as fb
fb.LLM({tiny!r}).generate("hi", max_tokens=1)
import fewbit.bench.machine, fewbit.cli.doctor, fewbit.ops.cuda
print(*sorted(name for name in sys.modules if name.partition(".")[0] in ("cuda", "nvidia")))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.strip() == ""
