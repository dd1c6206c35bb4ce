"""Options that several commands share reach the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from fewbit.cli import main
from fewbit.cli.model import load
from fewbit.cli.options import model_options
from fewbit.errors import FewbitError
from fewbit.load_options import LoadOptions
from fewbit.ops import cpu
from fewbit.option_fields import takes_options

from .tiny import write_tiny


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [([], None), (["--activations", "int16"], "int16"), (["--exact"], "exact"), (["--activations", "exact"], "exact")],
)
def test_activations(tmp_path: Path, flags: list[str], wanted: str | None) -> None:
    path = str(write_tiny(tmp_path / "tiny.gguf"))

    @click.command()
    @model_options
    def activations(**options: Any) -> None:
        with load(path, **options) as llm:
            click.echo(str(llm.loaded.executor.activations))  # type: ignore[attr-defined]

    result = CliRunner().invoke(activations, flags)
    assert result.stdout.strip() == str(wanted), result.exception
    other = CliRunner().invoke(activations, ["--exact", "--activations", "int8"])
    assert "is given too" in str(other.exception)


@pytest.mark.parametrize(("flags", "wanted"), [([], False), (["--batch-invariant"], True)])
@pytest.mark.parametrize("command", ["run", "chat", "bench"])
def test_batch_invariant(
    command: str, flags: list[str], wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write_tiny(tmp_path / "tiny.gguf"))
    given: list[bool] = []

    def stop(_: Any, options: LoadOptions) -> Any:
        given.append(options.batch_invariant)
        raise FewbitError("that is all")

    monkeypatch.setattr("fewbit.llm.LLM.__init__", takes_options(LoadOptions)(stop))
    monkeypatch.setattr("fewbit.bench.model.measure", lambda path, cases, options, rounds: stop(path, options))
    result = CliRunner().invoke(main, [command, path, *(["hi"] if command == "run" else []), *flags])
    assert result.stderr == "fewbit: that is all\n"
    assert given == [wanted]


@pytest.mark.parametrize(
    ("flags", "wanted"), [([], "interleaved16"), (["--repack"], "interleaved16"), (["--no-repack"], "rows")]
)
def test_repack(tmp_path: Path, flags: list[str], wanted: str) -> None:
    path = str(write_tiny(tmp_path / "wide.gguf", hidden=256, feed_forward=512, format="q4_0"))

    @click.command()
    @model_options
    def layout(**options: Any) -> None:
        with load(path, **options) as llm:
            nodes = llm.loaded.executor.graph.nodes  # type: ignore[attr-defined]
            click.echo(next(node.attributes["w"].layout for node in nodes if node.operation == "linear"))

    result = CliRunner().invoke(layout, flags)
    assert result.stdout.strip() == (wanted if cpu.isa() != "scalar" else "rows"), result.exception
