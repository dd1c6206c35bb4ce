"""`fewbit merge`, and `--lora` of the commands that answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fewbit as fb
from fewbit.cli import main
from fewbit.cli.options import read_adapters
from fewbit.devices.batch import Row
from fewbit.models import open_model

from ..loading import load
from ..models.test_lora import ZOO, adapted_logits, error, tokens_of

GOLDEN = ("llama", "gemma3", "granite", "phi3")


@pytest.mark.parametrize("name", GOLDEN)
def test_merged_weights_are_those_of_peft(name: str, tmp_path: Path) -> None:
    """Embeddings, fused products, whole heads; of tied embeddings the head stays as it was."""
    made = fb.merge_adapter(ZOO / name / "model.gguf", ZOO / name / "adapter", tmp_path / "merged.gguf", "f32")
    loaded = load(open_model(made.path), exact=True, kv="f32")
    tokens = tokens_of(name)
    got = loaded.forward([Row(loaded.cache.new(), tokens, len(tokens))])
    assert error(got, np.load(ZOO / name / "adapter.npz")["logits"]) < 1e-4


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "merged.gguf"
    arguments = [
        "merge",
        str(ZOO / "llama/hf"),
        str(ZOO / "llama/adapter.gguf"),
        "-o",
        str(out),
        "-f",
        "q8_0",
        "--json",
    ]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["format"] == "q8_0"
    before = CliRunner().invoke(main, arguments)
    assert before.exit_code != 0
    got = load(open_model(out), exact=True, kv="f32")
    expected = adapted_logits(
        load(open_model(ZOO / "llama/hf"), exact=True, kv="f32"), ZOO / "llama/adapter", [5, 6, 7]
    )
    assert error(got.forward([Row(got.cache.new(), [5, 6, 7], 3)]), expected) < 0.05


def test_formats_are_kept_without_one(tmp_path: Path) -> None:
    made = fb.merge_adapter(ZOO / "qwen2/model.gguf", ZOO / "qwen2/adapter", tmp_path / "merged.gguf")
    base = fb.read_gguf(ZOO / "qwen2/model.gguf")
    merged = fb.read_gguf(made.path)
    assert {name: info.format for name, info in merged.infos.items()} == {n: i.format for n, i in base.infos.items()}
    changed = [name for name in base.infos if not np.array_equal(base.tensors[name].data, merged.tensors[name].data)]
    assert changed == sorted(changed)
    assert {name.split(".")[2] for name in changed} == {"attn_q", "attn_v"}
    assert merged.metadata["tokenizer.ggml.model"] == base.metadata["tokenizer.ggml.model"]


def test_adapters_of_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(fb.FewbitError, match=r"of 64 x 32|the model's has|not in the model"):
        fb.merge_adapter(ZOO / "gpt2/model.gguf", ZOO / "llama/adapter", tmp_path / "merged.gguf")
    assert not (tmp_path / "merged.gguf").exists()


def test_lora_of_run() -> None:
    arguments = ["run", str(ZOO / "llama/model.gguf"), "abc", "--raw", "--temp", "0", "-n", "8", "-q", "--ctx", "64"]
    plain = CliRunner().invoke(main, arguments)
    adapted = CliRunner().invoke(main, [*arguments, "--lora", str(ZOO / "llama/adapter")])
    both = CliRunner().invoke(
        main, [*arguments, "--lora", f"a={ZOO}/llama/adapter", "--lora", f"b={ZOO}/llama/adapter.gguf"]
    )
    assert plain.exit_code == adapted.exit_code == both.exit_code == 0, (plain.output, adapted.output, both.output)
    assert len({plain.stdout, adapted.stdout, both.stdout}) == 3
    missing = CliRunner().invoke(main, [*arguments, "--lora", "/nothing"])
    assert missing.exit_code != 0
    remote = CliRunner().invoke(main, ["run", "--server", "http://127.0.0.1:1", "hi", "--lora", "a=b"])
    assert "a server's adapters are models" in remote.output


def test_names_of_adapters() -> None:
    context, option = None, None
    assert read_adapters(context, option, ("a=b/c", "x/sql", "y/terse.gguf")) == {  # type: ignore[arg-type]
        "a": "b/c", "sql": "x/sql", "terse": "y/terse.gguf",
    }  # fmt: skip
