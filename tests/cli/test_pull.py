"""`fewbit pull`: where models are."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main


def pull(*args: str, **env: str) -> Result:
    return CliRunner().invoke(main, ["pull", *args], env={"FEWBIT_OFFLINE": "1", **env})


def test_a_file_that_is_here(tiny: str) -> None:
    assert pull(tiny).stdout == f"{tiny}\n"
    facts = json.loads(pull(tiny, "--json").stdout)
    assert facts == {"model": tiny, "path": tiny, "bytes": Path(tiny).stat().st_size, "mmproj": None}


def test_what_cannot_be_fetched_is_one_line_and_status_1(tmp_path: Path) -> None:
    result = pull("smollm2", FEWBIT_CACHE=str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "not in the cache" in result.stderr


@pytest.mark.parametrize("model", ["https://models.invalid/a.gguf", "hf:org/repo"])
def test_no_network_is_one_sentence(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if model.startswith("hf:"):
        pytest.importorskip("huggingface_hub")

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    result = pull(model, FEWBIT_CACHE=str(tmp_path), FEWBIT_OFFLINE="0", HF_HUB_OFFLINE="0")
    assert result.exit_code == 1
    line = result.stderr.splitlines()[-1]
    assert line.startswith(f"fewbit: {model}: ")
    assert line.endswith(": the server cannot be found; is there a network?")


@pytest.mark.parametrize("args", [[], ["a", "b"]])
def test_wrong_usage_is_status_2(args: list[str]) -> None:
    assert pull(*args).exit_code == 2


def test_names_are_listed_with_size_and_license() -> None:
    shown = CliRunner().invoke(main, ["pull", "--list"]).output
    assert "smollm2 " in shown
    assert "qwen3:0.6b " in shown
    assert "qwen3:8b* " in shown
    models = json.loads(CliRunner().invoke(main, ["pull", "--list", "--json"]).output)
    assert all(model["bytes"] > 0 and model["license"] for model in models)


def test_which_model() -> None:
    assert "--list" in CliRunner().invoke(main, ["pull"]).stderr
    assert "leave out smollm2" in CliRunner().invoke(main, ["pull", "smollm2", "--list"]).stderr


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Options of the kernels that would be compiled, in this process and at once."""
    from fewbit.ops.cuda import compile as compiler
    from fewbit.ops.cuda import processes

    found: list[str] = []

    def compile_program(source: str, options: list[str]) -> tuple[bytes, str]:
        found.append(options[0])
        return b"machine code", ""

    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path))
    monkeypatch.setattr(processes, "can_start", lambda: False)
    monkeypatch.setattr(compiler, "compiler_version", lambda: "13.0")
    monkeypatch.setattr(compiler, "compile_program", compile_program)
    return found


def test_kernels_are_compiled_ahead(tiny: str, compiled: list[str], tmp_path: Path) -> None:
    facts = json.loads(pull(tiny, "--warm", "sm_90", "--json").stdout)
    assert (facts["path"], facts["arch"]) == (tiny, "sm_90")
    assert facts["kernels"] == len(compiled) == len(list((tmp_path / "cubins").iterdir())) > 10
    assert set(compiled) == {"-arch=sm_90a"}
    assert pull(tiny, "--warm", "sm_90").stdout == f"{tiny}\n"
    assert len(compiled) == facts["kernels"]  # they were kept


def test_kernels_for_the_gpu_that_is_there(tiny: str, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from fewbit.devices import cuda_kernels
    from fewbit.ops.cuda.planned import PlannedGpu, card_of

    card = PlannedGpu("sm_89", card_of("sm_89"))
    monkeypatch.setattr(cuda_kernels, "find_card", lambda arch: card)
    for args in ((tiny, "--warm"), ("--warm", tiny)):
        assert pull(*args).stdout == f"{tiny}\n"
    assert set(compiled) == {"-arch=sm_89"}


def test_kernels_that_cannot_be_compiled(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fewbit.ops.cuda import compile as compiler

    result = pull(tiny, "--warm", "sm_10")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "kernels are compiled for sm_80, " in result.stderr

    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(compiler, "import_module", missing)
    monkeypatch.setattr(compiler, "compiler_version", compiler.compiler_version.__wrapped__)
    result = pull(tiny, "--warm", "sm_90")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "install it: pip install 'fewbit[cuda]'" in result.stderr
    assert "--warm sm_90" in pull(tiny, "--warm").stderr
