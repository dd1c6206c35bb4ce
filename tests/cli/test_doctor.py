"""`fewbit doctor` on machines that are not this one: what it says of their instruction sets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from fewbit.bench.machine import ADDS, COMPLETE, command_output, cpu_name, name_in
from fewbit.cli import main
from fewbit.ops import cpu

X86 = ["amx", "avx512", "avx512bw", "avx2", "scalar"]
ARM = ["neon_i8mm", "neon_dotprod", "neon", "scalar"]


class Faked:
    """A machine with other instruction sets than this one's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, known: list[str], usable: list[str], used: str = "") -> None:
        monkeypatch.setattr(cpu, "known_isas", lambda: known)
        monkeypatch.setattr(cpu, "isas", lambda: usable)
        monkeypatch.setattr(cpu, "isa", lambda: used or usable[0])

    def text(self) -> str:
        return CliRunner().invoke(main, ["doctor"]).output

    def row(self, head: str) -> str:
        (row,) = [line for line in self.text().splitlines() if line.startswith(head + "  ")]
        return row.removeprefix(head).strip()

    def json(self) -> Any:
        return json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)


def test_the_lists_are_those_of_the_native_module() -> None:
    facts = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    assert facts["known_isas"] == cpu.known_isas()
    assert [name for name in facts["known_isas"] if name in facts["isas"]] == facts["isas"]
    assert facts["isas"][-1] == "scalar"
    assert facts["isa"] in facts["isas"]
    assert set(facts["missing_isas"]).isdisjoint(facts["isas"])


def test_every_instruction_set_says_what_it_adds() -> None:
    assert {*cpu.known_isas(), *X86, *ARM} - {"scalar"} <= set(ADDS)


def test_the_best_kernels_need_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    best = Faked(monkeypatch, X86, X86)
    assert best.row("compiled in") == best.row("instruction sets") == "amx, avx512, avx512bw, avx2, scalar"
    assert best.row("in use") == "amx"
    assert best.row("missing") == "-"
    assert "Note" not in best.text()
    assert best.json()["notes"] == []


@pytest.mark.parametrize(
    ("known", "usable", "missing"),
    [
        (X86, X86[1:], {"amx": "matrix tiles"}),
        (X86, X86[2:], {"amx": "matrix tiles", "avx512": "AVX-512 with integer dot products (VNNI)"}),
        (X86, X86[3:], {"amx": "matrix tiles", "avx512": "VNNI", "avx512bw": "vectors of 512 bits"}),
        (ARM, ARM[1:], {"neon_i8mm": "integer matrix products"}),
        (ARM, ARM[2:], {"neon_i8mm": "integer matrix products", "neon_dotprod": "integer dot products"}),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, known: list[str], usable: list[str], missing: dict[str, str]
) -> None:
    machine = Faked(monkeypatch, known, usable)
    facts = machine.json()
    assert list(facts["missing_isas"]) == list(missing)
    assert all(words in facts["missing_isas"][name] for name, words in missing.items())
    assert all(f"{name}: {facts['missing_isas'][name]}" in machine.row("missing") for name in missing)
    assert machine.row("compiled in") == ", ".join(known)
    assert machine.row("instruction sets") == ", ".join(usable)
    assert facts["notes"] == []


def test_a_cpu_without_kernels_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Faked(monkeypatch, X86, ["scalar"])
    (note,) = old.json()["notes"]
    assert note.startswith("this CPU has no kernels of its own (it has none of amx, avx512, avx512bw, avx2)")
    assert "4 tokens/s with scalar kernels, 101 with llama.cpp" in note
    assert old.text().endswith(f"\nNote: {note}.\n")


def test_a_build_without_kernels_for_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    (note,) = Faked(monkeypatch, ["scalar"], ["scalar"]).json()["notes"]
    assert note.startswith("this build has no kernels for riscv64 but scalar ones: expect")


def test_a_native_build_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    native = Faked(monkeypatch, ["avx512", "scalar"], ["avx512", "scalar"])
    assert native.row("compiled in").startswith("avx512, scalar (those of the machine it was built on; FEWBIT_TARGETS")
    assert native.json()["is_native_build"] is True
    assert native.json()["notes"] == []


def test_a_native_build_on_another_machine_asks_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Faked(monkeypatch, ["amx", "avx512", "scalar"], ["scalar"])
    (note,) = moved.json()["notes"]
    assert note.startswith("this build was compiled on another machine, for amx, avx512; scalar kernels run here")
    assert "pip install --force-reinstall ." in note


def test_a_complete_build_is_not_native(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in COMPLETE:
        assert Faked(monkeypatch, known, known).json()["is_native_build"] is False


def test_a_worse_one_than_the_best_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Faked(monkeypatch, ARM, ARM[1:], used="scalar")
    assert machine.json()["notes"] == ["scalar was asked for; neon_dotprod is better and can be used here"]


@pytest.mark.parametrize(("usable", "warned"), [(["scalar"], True), (["avx2", "scalar"], False)])
def test_run_says_that_only_scalar_kernels_run(
    monkeypatch: pytest.MonkeyPatch, tiny: str, usable: list[str], warned: bool
) -> None:
    monkeypatch.setattr(cpu, "isas", lambda: usable)
    result = CliRunner().invoke(main, ["run", tiny, "hi", "--max-tokens", "1"])
    assert result.exit_code == 0
    assert (result.stderr.count("only scalar kernels run on this machine") == 1) is warned
    assert "scalar" not in result.stdout


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor : 0\nmodel name\t: A CPU @ 2 GHz\n\nprocessor : 1\nmodel name\t: A CPU @ 2 GHz\n", "A CPU @ 2 GHz"),
        ("processor : 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "Neoverse-N1"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd0b\n\nModel\t\t: Raspberry Pi 5 Model B\n", "Raspberry Pi 5 Model B"),
        ("CPU implementer\t: 0x99\nCPU part\t: 0x001\n", None),
        ("", None),
    ],
)
def test_the_name_of_the_cpu(cpuinfo: str, name: str | None) -> None:
    assert name_in(cpuinfo) == name


def test_the_name_of_the_cpu_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.exists", lambda _: False)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("fewbit.bench.machine.command_output", lambda *command: f"what {command[0]} says")
    assert cpu_name() == "what sysctl says"


def test_a_command_that_fails_tells_nothing() -> None:
    assert command_output("sh", "-c", "echo found") == "found"
    assert command_output("sh", "-c", "echo found; exit 3") is None
