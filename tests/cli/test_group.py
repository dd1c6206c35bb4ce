"""The commands: found by a table, imported when used, all with help and examples."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields

import click
import pytest
from click.testing import CliRunner

from fewbit.cli import main
from fewbit.cli.group import LazyGroup
from fewbit.cli.options import SAMPLING_OPTIONS
from fewbit.ops.sampling import SamplingParams

from .tiny import start

HEAVY = ["rich", "jinja2", "tokenizers", "readline", "importlib.metadata", "fewbit.ops.cpu", "fewbit.files"]


def groups(group: LazyGroup) -> Iterator[LazyGroup]:
    yield group
    for command in commands(group).values():
        if isinstance(command, LazyGroup):
            yield from groups(command)


def commands(group: LazyGroup) -> dict[str, click.Command]:
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command}


def paths() -> list[list[str]]:
    assert isinstance(main, LazyGroup)
    inside = [["bench", name] for name in ("kernels", "model")]
    return [[], *([name] for name in main.table), *inside]


def test_the_help_in_the_table_is_that_of_the_command() -> None:
    assert isinstance(main, LazyGroup)
    for group in groups(main):
        assert commands(group).keys() == group.table.keys()
        for name, command in commands(group).items():
            assert command.name == name
            assert command.get_short_help_str(1000) == group.table[name][1]


@pytest.mark.parametrize("path", paths(), ids=" ".join)
def test_every_command_has_help_with_examples(path: list[str]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"], prog_name="fewbit")
    assert result.exit_code == 0
    assert result.output.startswith("Usage: fewbit")
    assert "  Examples:\n    fewbit " in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert CliRunner().invoke(main, [*path, "-h"], prog_name="fewbit").output == result.output


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["chat", "--help"], ["bench", "--help"]])
def test_help_imports_no_more_than_it_needs(args: list[str]) -> None:
    code = f"import sys; from fewbit.cli import main; main({args}, standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "fewbit.cli" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_inspect_imports_no_rich_when_piped() -> None:
    code = "import sys; from fewbit.cli import main; main(['formats'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "rich" not in done.stdout.splitlines()[-1].split()


def test_unknown_commands_are_wrong_usage() -> None:
    result = CliRunner().invoke(main, ["rnu"])
    assert result.exit_code == 2
    assert result.stderr == "fewbit: no such command 'rnu'; see main --help\n"
    assert CliRunner().invoke(main, ["--nope"]).stderr == "fewbit: no such option '--nope'; see main --help\n"


def test_the_command_alone_shows_its_help() -> None:
    assert CliRunner().invoke(main, []).output == CliRunner().invoke(main, ["--help"]).output


def test_a_wrong_option_is_one_sentence_with_what_was_meant() -> None:
    cases = {"--systen": "'--system'", "--max-tokenz": "'--draft-tokens' or '--max-batched-tokens' or '--max-tokens'"}
    for option, meant in cases.items():
        result = CliRunner().invoke(main, ["run", option, "3"], prog_name="fewbit")
        assert result.exit_code == 2
        assert result.stderr == f"fewbit: no such option '{option}'. Did you mean {meant}? see fewbit run --help\n"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--temp", "invalid value for '--temp': 'x' is not a number; see fewbit run --help"),
        ("--ctx", "invalid value for '--ctx': 'x' is not a whole number; see fewbit run --help"),
    ],
)
def test_a_wrong_value_is_one_sentence(option: str, message: str) -> None:
    result = CliRunner().invoke(main, ["run", "hi", option, "x"], prog_name="fewbit")
    assert (result.exit_code, result.stderr) == (2, f"fewbit: {message}\n")


def test_help_tells_of_the_environment() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    assert all(name in output for name in ("FEWBIT_CACHE", "FEWBIT_OFFLINE", "FEWBIT_THREADS", "FEWBIT_ISA"))


def test_too_little_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory() -> None:
        raise MemoryError

    monkeypatch.setattr(sys.modules["fewbit.formats"], "all_formats", no_memory)
    result = CliRunner().invoke(main, ["formats"])
    assert result.exit_code == 1
    assert result.stderr.startswith("fewbit: there is not enough memory; a smaller --ctx")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_a_full_disk_is_one_sentence(tiny: str) -> None:
    for args in (["formats"], ["run", tiny, "hi", "--max-tokens", "3", "--json"]):
        with open("/dev/full", "w") as full, start(*args, stdin=subprocess.DEVNULL, stdout=full) as process:
            _, errors = process.communicate()
        assert process.returncode == 1
        assert errors.decode().splitlines()[-1] == ("fewbit: the output cannot be written: No space left on device")
        assert b"Traceback" not in errors


def test_ctrl_c_is_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["fewbit.formats"], "all_formats", interrupt)
    result = CliRunner().invoke(main, ["formats"])
    assert (result.exit_code, result.output) == (130, "\n")


def test_sampling_options_tell_the_defaults() -> None:
    def nothing() -> None:
        pass

    for option in SAMPLING_OPTIONS:
        option(nothing)
    command = click.command()(nothing)
    told = {p.name: p.show_default for p in command.params if isinstance(p, click.Option) and p.name != "seed"}
    assert told == {field.name: f"model's or {field.default}" for field in fields(SamplingParams)}
