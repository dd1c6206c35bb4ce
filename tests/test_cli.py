"""The command: what it prints, as text and as JSON, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest
from click.testing import CliRunner, Result

import fewbit as fb
from fewbit.bench.formats import weight_formats
from fewbit.cli import main
from fewbit.ops import cpu

COMMANDS = ["doctor", "formats", "table"]
KERNELS = ["bench", "kernels", "--rounds", "1", "-f", "q8_0", "--shape", "64x256"]
SMALL = ["--rows", "8", "--columns", "256"]


def run(*args: str, **env: str) -> Result:
    return CliRunner().invoke(main, args, env=env)


def process(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`python -m fewbit` in a process of its own."""
    command = [sys.executable, "-m", "fewbit", *args]
    return subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **env})


def run_json(*args: str) -> Any:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_help_lists_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_keeps_examples_on_their_lines(command: str) -> None:
    lines = run(command, "--help").output.splitlines()
    assert f"    fewbit {command}" in lines


def test_version_is_that_of_the_package() -> None:
    assert process("--version").stdout == f"fewbit, version {version('fewbit')}\n"


def test_doctor_json() -> None:
    machine = run_json("doctor")
    assert machine["isa"] in machine["isas"]
    assert machine["threads"] >= 1
    assert set(machine["kernels"]) == set(fb.formats())
    assert machine["packages"]["numpy"]


def test_doctor_text() -> None:
    lines = run("doctor").output.splitlines()
    heads = {line.split("  ")[0] for line in lines}
    assert {"CPU", "cores", "threads", "instruction sets", "in use", "packages", "optional"} <= heads


def test_doctor_tells_of_a_forced_isa() -> None:
    machine = json.loads(process("doctor", "--json", FEWBIT_ISA="scalar").stdout)
    assert (machine["isa"], machine["forced_isa"]) == ("scalar", "scalar")


def test_an_unknown_isa_is_refused() -> None:
    done = process("doctor", FEWBIT_ISA="no-such-isa")
    assert done.returncode == 1
    assert "'no-such-isa' is not available here" in done.stderr.splitlines()[-1]


def test_formats_json_has_every_format() -> None:
    found = {f["name"]: f for f in run_json("formats")}
    assert list(found) == list(fb.formats())
    assert found["q4_k"] == {
        "name": "q4_k", "bits_per_weight": 4.5, "block": 256, "group": 32, "gguf": 12, "about": "",
    }  # fmt: skip


def test_formats_text_is_plain_when_piped() -> None:
    output = run("formats").output
    lines = output.splitlines()
    assert lines[0].split() == ["format", "bits", "block", "group", "GGUF", "about"]
    assert len(lines) == len(fb.formats()) + 1
    assert "\x1b" not in output


def test_formats_has_lines_on_a_terminal() -> None:
    output = run("formats", FORCE_COLOR="1", COLUMNS="160").output
    assert "│" in output
    assert "q4_k" in output


def test_table_json_has_every_format_that_encodes() -> None:
    report = run_json("table", *SMALL)
    assert (report["rows"], report["columns"]) == (8, 256)
    assert [row["format"] for row in report["formats"]] == [f.name for f in weight_formats()]
    for row in report["formats"]:
        assert 0 <= row["relative_rmse"] < 1.5, row
        assert min(row[key] for key in row if key.endswith("_per_s")) > 0, row


def test_table_text() -> None:
    lines = run("table", *SMALL, "-f", "q4_k", "-f", "int4_group:group=64").output.splitlines()
    assert lines[0].startswith("8 x 256, ")
    assert [line.split()[0] for line in lines[1:]] == ["format", "q4_k", "int4_group:group=64"]


def test_table_counts_padding() -> None:
    (row,) = run_json("table", "--rows", "8", "--columns", "128", "-f", "q4_k")["formats"]
    assert row["bits_per_weight"] == 9


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["table", "-f", "nope"], "unknown format 'nope'"),
        (["table", "-f", "int4:block=3"], "int4: block must be an even number"),
        (["table", "-f", "int4:size=3", *SMALL], "format 'int4' has no option 'size'"),
    ],
)
def test_errors_are_one_line_and_status_1(args: list[str], message: str) -> None:
    result = run(*args)
    assert result.exit_code == 1
    assert result.output.startswith("fewbit: ")
    assert result.output.count("\n") == 1
    assert message in result.output


@pytest.mark.parametrize("args", [["no-such-command"], ["table", "--rows", "0"], ["formats", "--no-such-option"]])
def test_wrong_usage_is_status_2(args: list[str]) -> None:
    assert run(*args).exit_code == 2


def test_bench_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbit.bench.kernels.MEMORY_BYTES", 1 << 20)
    (first, second) = run_json(*KERNELS, "--batch", "1,3")
    assert (first["batch"], second["batch"]) == (1, 3)
    assert first["format"] == "q8_0"
    assert first["share_of_read"] > 0
    assert "q8_0" in run(*KERNELS).output
    (repacked,) = run_json(*KERNELS, "--repack", "--batch", "12")
    assert repacked["kernel"] == cpu.kernel("q8_0", 256, 12, "interleaved16")
    (int16,) = run_json(*KERNELS, "--activations", "int16")
    assert int16["inputs"] == "q16"


@pytest.mark.parametrize("wrong", [["--shape", "64"], ["--shape", "0x64"], ["--batch", "a"], ["--batch", "1,,2"]])
def test_bench_kernels_refuses(wrong: list[str]) -> None:
    result = run(*KERNELS, *wrong)
    assert result.exit_code == 2
    assert "is not like" in result.output


def test_doctor_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbit.bench.limits.MEMORY_BYTES", 1 << 22)
    limits = run_json("doctor", "--measure")["limits"]
    assert [row["threads"] for row in limits] == list(range(1, len(limits) + 1))
    assert all(row["memory_gb_per_s"] > 0 and row["int8_gmac_per_s"] > 0 for row in limits)
    assert "memory GB/s" in run("doctor", "--measure").output
