"""Checkpoint folders of repositories, by huggingface_hub from a stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .hub_processes import find_all, needs_library
from .hub_server import Site

CHECKPOINT = {"config.json": b"{}", "tokenizer.json": b"{}", "README.md": b"", "pytorch_model.bin": b"PK",
              "1_Pooling/config.json": b"{}"}  # fmt: skip
INDEX = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}


@pytest.fixture
def site(hub_site: Site) -> Site:
    return hub_site


@needs_library
def test_a_checkpoint_of_a_repository(site: Site) -> None:
    whole = CHECKPOINT | {"model.safetensors": b"w", "onnx/model.safetensors": b"x"}
    split = CHECKPOINT | {"model-1.safetensors": b"1", "model-2.safetensors": b"2", "model-3.safetensors": b"3"}
    site.add_repository("org/one", whole)
    site.add_repository("org/split", split | {"model.safetensors.index.json": json.dumps(INDEX).encode()})
    one, again, parts, offline = find_all("hf:org/one", "hf:org/one", "hf:org/split", ("hf:org/split", True))
    assert one == again
    assert parts == offline
    assert files_beside(one) == {"1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.json"}
    assert files_beside(parts) >= {"config.json", "model-1.safetensors", "model-2.safetensors"}
    assert not {"model-3.safetensors", "pytorch_model.bin"} & files_beside(parts)


def files_beside(path: str) -> set[str]:
    folder = Path(path).parent
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


@needs_library
def test_checkpoints_that_are_not_as_they_should_be(site: Site, tmp_path: Path) -> None:
    evil = json.dumps({"weight_map": {"a": "../../evil.safetensors"}}).encode()
    cut = json.dumps({"weight_map": {"a": "none.safetensors"}}).encode()
    site.add_repository("org/evil", CHECKPOINT | {"x.safetensors": b"", "model.safetensors.index.json": evil})
    site.add_repository("org/cut", CHECKPOINT | {"x.safetensors": b"", "model.safetensors.index.json": cut})
    site.add_repository("org/two", CHECKPOINT | {"x.safetensors": b"", "y.safetensors": b""})
    site.add_repository("org/one", CHECKPOINT | {"model.safetensors": b"w"})
    found = find_all("hf:org/evil", "hf:org/cut", "hf:org/two", "hf:org/one:q4_k_m")
    assert "files are named like model-00001-of-00002.safetensors and lie beside the index" in found[0]
    assert "its index names none.safetensors, which is missing" in found[1]
    assert "several safetensors files but no model.safetensors.index.json" in found[2]
    assert "give hf:org/one alone and choose the format with --format q4_k_m" in found[3]
