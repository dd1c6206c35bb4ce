"""`fewbit quantize`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import fewbit as fb
from fewbit.cli import main
from fewbit.files.imatrix import ImportanceMatrix, SquareSums, write_imatrix

from ..models.random_llama import llama
from ..models.vision.wide import write_wide_encoder
from ..models.vision.zoo import FOLDER

SEEING = FOLDER / "gemma3"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("source") / "source.gguf"
    fb.write_gguf(path, *llama(hidden=256, feed_forward=512, layers=2, format="f16"))
    return str(path)


def call(*args: str) -> Result:
    return CliRunner().invoke(main, ["quantize", *args], env={"FEWBIT_OFFLINE": "1"})


def test_sums_by_format(source: str, tmp_path: Path) -> None:
    result = call(source, "-o", str(tmp_path / "out.gguf"), "-f", "q4_k_m")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["format", "tensors", "size", "bits"]
    assert [line[0] for line in lines[1:5]] == ["q4_k", "q6_k", "f32", "total"]
    assert result.stdout.endswith(f"{tmp_path / 'out.gguf'}: written\n")
    assert fb.read_gguf(tmp_path / "out.gguf").tensors["output.weight"].format.name == "q6_k"


def test_json_and_patterns(source: str, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    result = call(source, "-o", str(out), "--format", "q3_k_s", "--tensor", "ffn_down=q8_0", "--json")
    facts = json.loads(result.stdout)
    assert facts["bytes"] == sum(row["bytes"] for row in facts["tensors"])
    row = next(row for row in facts["tensors"] if row["name"] == "blk.1.ffn_down.weight")
    assert (row["source"], row["format"], row["shape"]) == ("f16", "q8_0", [256, 512])


def test_a_dry_run_with_every_tensor(source: str, tmp_path: Path) -> None:
    result = call(source, "-o", str(tmp_path / "out.gguf"), "--format", "iq3_xs", "--dry-run", "--list")
    assert any(
        line.split()[:4] == ["blk.0.attn_q.weight", "256x256", "f16", "iq3_xxs"] for line in result.stdout.splitlines()
    )
    assert result.stdout.endswith("out.gguf: not written\n")
    assert not list(tmp_path.iterdir())


def test_an_importance_matrix(source: str, tmp_path: Path) -> None:
    name, sums = "blk.0.attn_q.weight", np.linspace(1, 9, 256)[None]
    write_imatrix(tmp_path / "imatrix.gguf", ImportanceMatrix({name: SquareSums(sums, np.array([4.0]))}))
    result = call(source, "-o", str(tmp_path / "out.gguf"), "-f", "q4_k_s", "--imatrix", str(tmp_path / "imatrix.gguf"))
    assert result.exit_code == 0, result.output
    values = fb.read_gguf(source).tensors[name].dequantize()
    expected = fb.quantize(values, "q4_k", (sums[0] / 4).astype(np.float32))
    assert fb.read_gguf(tmp_path / "out.gguf").tensors[name] == expected


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [(["--format", "q9"], 1, "there is no format 'q9' to quantize a model to; there are: iq1_s"),
     (["--tensor", "ffn_down"], 2, "'ffn_down' is not like ffn_down=q6_k"),
     (["--tensor", "fnf=q6_k"], 1, "no matrix has a name with 'fnf'")],
)  # fmt: skip
def test_one_sentence(source: str, tmp_path: Path, args: list[str], code: int, message: str) -> None:
    result = call(source, "-o", str(tmp_path / "out.gguf"), *args)
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there(source: str) -> None:
    result = call(source, "-o", source)
    assert result.stderr == f"fewbit: {source}: the file exists; only force replaces it\n"


def test_an_image_encoder(tmp_path: Path) -> None:
    source, out = write_wide_encoder("gemma3", tmp_path / "mmproj-f32.gguf"), tmp_path / "mmproj-q8_0.gguf"
    result = call("--mmproj", str(source), "-o", str(out), "-f", "q8_0")
    assert (result.exit_code, result.stderr) == (0, "")
    assert fb.read_gguf(out).tensors["v.blk.0.attn_q.weight"].format.name == "q8_0"
    refused = call(str(source), "-o", str(tmp_path / "text.gguf"))
    note = "this is an image encoder, not a model of text; the option mmproj quantizes it"
    assert refused.stderr == f"fewbit: {source}: {note}\n"
    text = SEEING / "model.gguf"
    refused = call("--mmproj", str(text), "-o", str(tmp_path / "text.gguf"))
    assert refused.stderr == f"fewbit: {text}: this is no image encoder, it is a gemma3 model\n"
    written = call(str(SEEING / "hf"), "-o", str(tmp_path / "text.gguf"), "-f", "bf16")
    note = "only the text model is written, not its image encoder; --mmproj writes that"
    assert (written.exit_code, written.stderr) == (0, f"fewbit: {SEEING / 'hf'}: {note}\n")
