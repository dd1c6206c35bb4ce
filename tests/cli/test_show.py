"""`fewbit show` and `fewbit inspect` of GGUF files and of checkpoint folders; sampling goes by what a model is."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main
from fewbit.files.hub import builtin
from fewbit.llm import LLM

from .tiny import TEMPLATE, write_tiny

ZOO = Path(__file__).parents[1] / "zoo"
CHECKPOINT = ZOO / "llama" / "hf"


def call(*args: str, **env: str) -> Result:
    return CliRunner().invoke(main, args, env={"FEWBIT_OFFLINE": "1", **env})


def facts(*args: str) -> dict[str, Any]:
    result = call(*args, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("place", ["", "config.json", "model.safetensors"])
def test_inspect_of_a_checkpoint(place: str) -> None:
    found = facts("inspect", str(CHECKPOINT / place) if place else str(CHECKPOINT))
    assert found["architecture"] == "LlamaForCausalLM"
    assert found["files"] == [str(CHECKPOINT / "model.safetensors")]
    assert found["file_bytes"] == (CHECKPOINT / "model.safetensors").stat().st_size
    assert found["tokenizer"] == {"model": "gpt2", "tokens": 288, "chat_template": False}
    assert found["metadata"]["rope_parameters.rope_type"] == "default"
    (row,) = found["formats"]
    assert (row["format"], row["bits_per_weight"]) == ("bf16", 16.0)
    assert found["parameters"] == found["total"]["values"] == sum(one["values"] for one in found["tensors"])
    assert {"model.norm.weight", "lm_head.weight"} <= {one["name"] for one in found["tensors"]}


def test_inspect_of_a_checkpoint_in_text() -> None:
    text = call("inspect", str(CHECKPOINT)).stdout
    assert "model.safetensors: safetensors, 86.38 KiB\nLlamaForCausalLM, 43,168 parameters\n" in text
    assert "tokenizer: gpt2, 288 tokens, no chat template" in text
    assert re.search(r"model.layers.1.mlp.up_proj.weight +64x32 +bf16 ", text)
    assert "up_proj" not in call("inspect", str(CHECKPOINT), "--no-tensors").stdout


@pytest.mark.parametrize("kind", sorted(path.parent.name for path in ZOO.glob("*/hf")))
def test_every_checkpoint_can_be_inspected_and_shown(kind: str) -> None:
    assert facts("inspect", str(ZOO / kind / "hf"))["parameters"] > 0
    shown = facts("show", str(ZOO / kind / "hf"))
    assert "problem" not in shown
    assert shown["context"] > 0
    assert "embed" in shown["capabilities"]


def test_inspect_of_a_checkpoint_that_fewbit_cannot_run(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CHECKPOINT, tmp_path / "other"))
    (folder / "tokenizer.json").unlink()
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["OtherForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    found = facts("inspect", str(folder))
    assert found["architecture"] == "OtherForCausalLM"
    assert "tokenizer.json is missing" in found["tokenizer"]["error"]
    assert found["parameters"] == 43168


def test_show_of_a_file(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", general={"general.license": "mit", "general.sampling.temp": 0.3})
    found = facts("show", str(path))
    assert (found["name"], found["path"], found["license"]) == ("m", str(path), "mit")
    assert found["architecture"] == "llama"
    assert found["context"] == 1 << 16
    assert found["capabilities"] == ["complete", "chat", "embed"]
    assert found["sampling"]["temperature"] == pytest.approx(0.3)
    assert found["template"] == TEMPLATE
    assert found["bytes"] == path.stat().st_size
    text = call("show", str(path)).stdout
    assert "context       65,536 tokens" in text
    assert "license       mit" in text
    assert text.endswith(f"chat template:\n\n{TEMPLATE}\n")
    assert call("show", str(path), "--template").stdout == TEMPLATE + "\n"


def test_show_of_tools_and_of_no_template(tmp_path: Path, no_template: str) -> None:
    path = write_tiny(tmp_path / "t.gguf", template="{{ tools }}{% if enable_thinking %}{% endif %}" + TEMPLATE)
    assert facts("show", str(path))["capabilities"] == ["complete", "chat", "tools", "thinking", "embed"]
    assert facts("show", no_template)["capabilities"] == ["complete", "embed"]
    result = call("show", no_template, "--template")
    assert (result.exit_code, result.stderr) == (1, "fewbit: plain has no chat template\n")


def test_show_of_a_model_that_fewbit_cannot_run(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", general={"general.architecture": "nothing"})
    found = facts("show", str(path))
    assert "architecture 'nothing' is not known" in found["problem"]
    assert found["capabilities"] == []
    assert "fewbit cannot run it: " in call("show", str(path)).stderr


def test_show_of_a_name_that_was_not_fetched(tmp_path: Path) -> None:
    result = call("show", "qwen3-4b", FEWBIT_CACHE=str(tmp_path))
    assert result.exit_code == 0
    assert "not fetched yet: fewbit pull qwen3:4b" in result.stdout
    assert "Apache-2.0" in result.stdout
    result = call("show", "nomic-embed-text", "--template", FEWBIT_CACHE=str(tmp_path))
    assert result.exit_code == 1
    assert "not fetched yet" in result.stderr


def test_a_copy_of_a_built_in_model_is_sampled_alike_wherever_it_lies(tmp_path: Path) -> None:
    model = builtin()["smollm2"]
    path = write_tiny(tmp_path / "renamed.gguf", general={"general.name": model.title})
    with LLM(path) as llm:
        assert (llm.sampling.temperature, llm.sampling.top_p) == (0.2, 0.9)
    assert facts("show", str(path))["sampling"]["temperature"] == 0.2
    with LLM(write_tiny(tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf")) as llm:
        assert llm.sampling.temperature == 0.8
