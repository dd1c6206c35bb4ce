"""`fb.quantize_model` with bits or a size: the format of each matrix is chosen by measured loss."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fewbit as fb
from fewbit.cli import main
from fewbit.errors import ArgumentError, DtypeError, PathError
from fewbit.files.gguf import resumable
from fewbit.files.imatrix import ImportanceMatrix, SquareSums
from fewbit.models import open_model
from fewbit.quantizing.allocation import Option, allocate, total_bytes
from fewbit.quantizing.errors_by_format import measure_errors
from fewbit.quantizing.mixes import MIXES
from fewbit.quantizing.moments import Moments
from fewbit.quantizing.plan import plan_tensors

from ..cli.tiny import write_tiny

TEXT = "The quick brown fox jumps over the lazy dog. " * 12
FORMATS = ("q2_k", "q4_k", "q6_k", "q8_0")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "source.gguf"
    return write_tiny(path, hidden=256, feed_forward=512, layers=2, format="f16")


def formats(made: fb.QuantizedModel) -> dict[str, str]:
    return {item.name: item.format.name for item in made.tensors if item.loss is not None}


def bits_of(made: fb.QuantizedModel, name: str) -> float:
    return next(item.format.bits_per_weight for item in made.tensors if item.name == name)


def random_options(seed: int, items: int) -> dict[str, list[Option]]:
    rng = np.random.default_rng(seed)
    return {
        f"m{number}": [
            Option(int(nbytes), float(loss), fmt)
            for nbytes, loss, fmt in zip(
                np.sort(rng.choice(200, 4, replace=False)) + 50, -np.sort(-rng.random(4)), FORMATS, strict=True
            )
        ]
        for number in range(items)
    }


@pytest.mark.parametrize("seed", range(8))
def test_allocation_is_within_one_step_of_the_best(seed: int) -> None:
    options = random_options(seed, 5)
    budget = 5 * 140
    choices = [choice for choice in product(*options.values()) if sum(one.nbytes for one in choice) <= budget]
    best = min(sum(one.loss for one in choice) for choice in choices)
    chosen = allocate(options, budget)
    assert total_bytes(chosen) <= budget
    one_step = max(max(one.loss for one in known) - min(one.loss for one in known) for known in options.values())
    assert best <= sum(one.loss for one in chosen.values()) <= best + one_step
    exact = allocate(options, 5 * 249)
    assert exact == {name: min(known, key=lambda one: one.loss) for name, known in options.items()}


@pytest.mark.parametrize("bits", [3.1, 4.2, 5.7])
def test_bits(source: Path, tmp_path: Path, bits: float) -> None:
    made = fb.quantize_model(source, tmp_path / "out.gguf", bits=bits, text=TEXT)
    assert 0.99 * bits < made.bits_per_weight <= bits
    file = fb.read_gguf(tmp_path / "out.gguf")
    assert made.format == f"{bits:g} bits"
    assert (file.metadata["fewbit.target.bits"], file.metadata["fewbit.target.method"]) == (bits, "KL divergence")
    assert {item.name: item.format.name for item in made.tensors} == {n: t.format.name for n, t in file.tensors.items()}
    assert {item.name for item in made.tensors if item.loss is None} == {
        name for name in file.tensors if name.endswith("_norm.weight")
    }


def test_a_size_is_that_of_the_file(source: Path, tmp_path: Path) -> None:
    made = fb.quantize_model(source, tmp_path / "out.gguf", size="800 kB", text=TEXT)
    assert 792_000 < (tmp_path / "out.gguf").stat().st_size <= 800_000
    metadata = fb.read_gguf(tmp_path / "out.gguf").metadata
    assert (metadata["fewbit.target.size"], metadata["fewbit.target.method"]) == (800_000, "KL divergence")
    assert sum(item.loss or 0 for item in made.tensors) > 0
    with fb.LLM(tmp_path / "out.gguf") as llm:
        assert llm.generate("the ", max_tokens=4, temperature=0).tokens


def test_the_same_bytes_with_other_threads(source: Path, tmp_path: Path) -> None:
    for threads in (1, 2, 3):
        fb.quantize_model(source, tmp_path / f"{threads}.gguf", bits=4.4, text=TEXT, threads=threads)
    one, two, three = ((tmp_path / f"{threads}.gguf").read_bytes() for threads in (1, 2, 3))
    assert one == two == three


def test_a_sensitive_matrix_gets_more_bits(tmp_path: Path) -> None:
    """Its output is multiplied, so that the errors of its weights change the logits more than those of others."""
    name, quiet = "blk.0.ffn_down.weight", "blk.1.ffn_down.weight"
    path = write_tiny(tmp_path / "in.gguf", hidden=256, feed_forward=512, layers=2, format="f32")
    file = fb.read_gguf(path)
    tensors: dict[str, Any] = {key: tensor.dequantize() for key, tensor in file.tensors.items()}
    for key, factor in ((name, 30), (quiet, 0.01)):
        tensors[key] = tensors[key] * np.float32(factor)
    fb.write_gguf(tmp_path / "loud.gguf", dict(file.typed_metadata), tensors)
    made = fb.quantize_model(tmp_path / "loud.gguf", tmp_path / "out.gguf", bits=4.2, text=TEXT)
    assert bits_of(made, name) > 4.6
    assert bits_of(made, quiet) < 3


def test_experts_count_by_their_tokens(tmp_path: Path) -> None:
    """An expert that is hard to quantize matters if tokens choose it."""
    rng, names = np.random.default_rng(0), ("blk.0.ffn_up_exps.weight", "blk.0.ffn_gate_exps.weight")
    values = rng.standard_normal((2, 32, 256), np.float32)
    values[1] = np.sign(values[1])  # exact in every format
    metadata = {"general.architecture": "llama", "llama.block_count": 1}
    fb.write_gguf(tmp_path / "in.gguf", metadata, dict.fromkeys(names, values))
    file, counts = open_model(tmp_path / "in.gguf"), ([99.0, 1.0], [1.0, 99.0])
    entries = {
        name: SquareSums(np.ones((2, 256)) * np.array(count)[:, None], np.array(count))
        for name, count in zip(names, counts, strict=True)
    }
    plan, moments = plan_tensors(file, MIXES["q4_0"]), Moments(ImportanceMatrix(entries))
    often, rarely = (measure_errors(file, plan[name], [fb.format("q4_0")], moments, 1)["q4_0"] for name in names)
    assert often == pytest.approx(99 * rarely, rel=0.01)


def test_patterns_are_kept(source: Path, tmp_path: Path) -> None:
    made = fb.quantize_model(
        source, tmp_path / "out.gguf", bits=4.6, text=TEXT, tensors={"attn_v": "q8_0", "ffn_up": "q3_k"}
    )
    found = {item.name: item for item in made.tensors}
    assert {found[f"blk.{i}.attn_v.weight"].format.name for i in (0, 1)} == {"q8_0"}
    assert found["blk.1.ffn_up.weight"].format.name == "q3_k"
    assert found["blk.1.ffn_up.weight"].loss is None
    assert 4.55 < made.bits_per_weight <= 4.6


def test_short_rows_and_packed_sources(tmp_path: Path) -> None:
    write_tiny(tmp_path / "in.gguf", hidden=96, feed_forward=160, layers=1, format="f16")
    made = fb.quantize_model(tmp_path / "in.gguf", tmp_path / "out.gguf", bits=5.6, text=TEXT)
    assert set(formats(made).values()) <= {"iq4_nl", "q4_1", "q5_0", "q5_1", "q8_0"}
    assert made.bits_per_weight <= 5.6
    write_tiny(tmp_path / "packed.gguf", hidden=256, feed_forward=512, layers=1, format="q4_0")
    again = fb.quantize_model(tmp_path / "packed.gguf", tmp_path / "b.gguf", bits=4.7, text=TEXT)
    assert set(formats(again).values()) == {"q4_0"}
    assert {item.loss for item in again.tensors if item.loss is not None} == {0.0}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [({"bits": 2, "text": TEXT}, ArgumentError,
      r"2 bits a weight is too small for this model: 2.6\d\d to 8.5\d\d bits are possible"),
     ({"size": "1GB", "text": TEXT}, ArgumentError,
      r"1,000,000,000 bytes is too large for this model: [\d,]+ to [\d,]+ bytes are"),
     ({"bits": -1}, ArgumentError, "bits must be greater than 0, got -1"),
     ({"bits": "4"}, DtypeError, "bits must be a number such as 4.2, not str"),
     ({"size": "4 bits"}, ArgumentError, "size must be a number of bytes or a text such as '3.5GB' or '800 MiB', got"),
     ({"bits": 4, "size": 3}, ArgumentError, "give bits or size, not both"),
     ({"bits": 4, "format": "q4_0"}, ArgumentError, "leave format 'q4_0' out"),
     ({"bits": 4, "pure": True}, ArgumentError, "leave pure out"),
     ({"bits": 4}, ArgumentError, "bits and size need a text that shows which matrices matter"),
     ({"text": TEXT}, ArgumentError, "text is for bits or size")],
)  # fmt: skip
def test_one_sentence(
    source: Path, tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fb.quantize_model(source, tmp_path / "out.gguf", **options)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_refused_before_anything_is_measured(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_bytes(b"precious")
    stages: list[str] = []
    with pytest.raises(PathError, match="the file exists; only force replaces it"):
        fb.quantize_model(
            source, tmp_path / "out.gguf", bits=4, text=TEXT, progress=lambda what, *_: stages.append(what)
        )
    assert not stages


class Stopped(BaseException):
    """As if the process was killed: nothing may catch it."""


def test_resumed_to_the_same_bytes(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fb.quantize_model(source, tmp_path / "whole.gguf", bits=4.4, text=TEXT)
    out, write, calls = tmp_path / "out.gguf", resumable.ResumableGGUF.write, []

    def stopping(*args: Any) -> None:
        calls.append(args)
        if len(calls) > 9:
            raise Stopped
        write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(resumable.ResumableGGUF, "write", stopping)
        with pytest.raises(Stopped):
            fb.quantize_model(source, out, bits=4.4, text=TEXT)
    assert fb.quantize_model(source, out, bits=4.4, text=TEXT).resumed == 9
    assert out.read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_the_command(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    out = ["-o", str(tmp_path / "out.gguf")]
    given = ["quantize", str(source), *out, "--bits", "4.2", "--text", str(tmp_path / "text.txt")]
    result = CliRunner().invoke(main, [*given, "--dry-run", "--json"], env={"FEWBIT_OFFLINE": "1"})
    assert result.exit_code == 0, result.output
    losses = {row["name"]: row["loss"] for row in json.loads(result.stdout)["tensors"]}
    assert losses["output_norm.weight"] is None
    assert losses["output.weight"] > 0
    table = CliRunner().invoke(main, given, env={"FEWBIT_OFFLINE": "1"}).stdout.splitlines()
    assert table[0].split() == ["tensor", "shape", "from", "to", "size", "loss"]
    assert table[1].split()[:2] == ["token_embd.weight", "257x256"]
    both = CliRunner().invoke(main, ["quantize", str(source), *out, "--size", "1MB", "-f", "q4_0"])
    assert (both.exit_code, both.stderr.count("\n")) == (1, 1)
