"""`fewbit show`, `pull`, `list` and `rm` of models with an image encoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main

SEEING = Path(__file__).parents[1] / "vision_zoo" / "qwen2vl_merger"


def call(*args: str, **env: str) -> Result:
    result = CliRunner().invoke(main, args, env={"FEWBIT_OFFLINE": "1", **env})
    assert result.exit_code == 0, result.output
    return result


def test_show_tells_of_the_encoder(tmp_path: Path) -> None:
    facts = json.loads(call("show", str(SEEING / "model.gguf"), "--json").stdout)
    assert facts["encoder"]["path"] == str(SEEING / "mmproj.gguf")
    assert facts["encoder"]["projector"] == "qwen2vl_merger"
    assert facts["capabilities"][-1] == "images"
    assert f": {SEEING / 'mmproj.gguf'}" in call("show", str(SEEING / "model.gguf")).stdout
    assert json.loads(call("show", str(SEEING / "hf"), "--json").stdout)["encoder"]["projector"] == "qwen2vl_merger"
    alone = shutil.copy(SEEING / "model.gguf", tmp_path / "alone.gguf")
    facts = json.loads(call("show", str(alone), "--json").stdout)
    assert (facts["encoder"], "images" in facts["capabilities"]) == (None, False)


def test_show_of_an_encoder(tmp_path: Path) -> None:
    facts = json.loads(call("show", str(SEEING / "mmproj.gguf"), "--json").stdout)
    assert (facts["projector"], facts["capabilities"]) == ("qwen2vl_merger", ["encode images"])
    assert "encode images" in call("show", str(SEEING / "mmproj.gguf")).stdout
    data = (SEEING / "mmproj.gguf").read_bytes().replace(b"qwen2vl_merger", b"qwen9vl_merger")
    (tmp_path / "mmproj-m.gguf").write_bytes(data)
    assert "projector 'qwen9vl_merger' are not known" in call("show", str(tmp_path / "mmproj-m.gguf")).stderr
    shutil.copy(SEEING / "model.gguf", tmp_path / "m.gguf")
    assert "cannot be used: " in call("show", str(tmp_path / "m.gguf")).stdout


def test_pull_tells_where_the_encoder_is() -> None:
    model = str(SEEING / "model.gguf")
    result = call("pull", model)
    assert (result.stdout, result.stderr) == (f"{model}\n", f"image encoder: {SEEING / 'mmproj.gguf'}\n")
    assert json.loads(call("pull", model, "--json").stdout)["mmproj"] == str(SEEING / "mmproj.gguf")
    assert call("pull", model, "--no-mmproj").stderr == ""


def test_an_encoder_is_removed_with_the_last_model_that_has_it(tmp_path: Path) -> None:
    snapshot, cache = tmp_path / "models--org--m" / "snapshots" / "abc", tmp_path / "cache"
    blobs = tmp_path / "models--org--m" / "blobs"
    for folder in (snapshot, cache / "hf", blobs):
        folder.mkdir(parents=True)
    for name in ("m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf"):
        (blobs / name).write_bytes(b"GGUF" + name.encode())
        (snapshot / name).symlink_to(blobs / name)
    for number, names in enumerate([("m-Q4_0.gguf", "mmproj-F16.gguf"), ("m-Q8_0.gguf", "mmproj-F16.gguf"),
                                    ("m-Q4_0.gguf",)]):  # fmt: skip
        files = [[str(snapshot / name), (snapshot / name).stat().st_size] for name in names]
        (cache / "hf" / f"{number}.json").write_text(json.dumps({"files": files}))
    rows = json.loads(call("list", "--json", FEWBIT_CACHE=str(cache)).stdout)
    found = {row["name"]: [Path(file).name for file in row["files"]] for row in rows if row["path"]}
    assert found == {
        "hf:org/m:m-Q4_0.gguf": ["m-Q4_0.gguf", "mmproj-F16.gguf"],
        "hf:org/m:m-Q8_0.gguf": ["m-Q8_0.gguf", "mmproj-F16.gguf"],
    }
    call("rm", "hf:org/m:m-Q4_0.gguf", FEWBIT_CACHE=str(cache))
    assert sorted(path.name for path in blobs.iterdir()) == ["m-Q8_0.gguf", "mmproj-F16.gguf"]
    call("rm", "hf:org/m:m-Q8_0.gguf", FEWBIT_CACHE=str(cache))
    assert not list(blobs.iterdir())


def test_options_name_files_and_none(tmp_path: Path) -> None:
    model = shutil.copy(SEEING / "model.gguf", tmp_path / "alone.gguf")
    encoder = shutil.copy(SEEING / "mmproj.gguf", tmp_path / "e.gguf")
    picture = tmp_path / "red.png"
    pytest.importorskip("PIL.Image").new("RGB", (60, 40), "red").save(picture)
    run = ["run", str(model), "What?", "--image", str(picture), "--max-tokens", "2"]
    assert call(*run, "--mmproj", str(encoder)).stdout
    for options in ([], ["--mmproj", "off"]):
        refused = CliRunner().invoke(main, [*run, *options])
        assert "the model reads text only" in refused.stderr
    wrong = CliRunner().invoke(main, [*run, "--mmproj", str(tmp_path / "none.gguf")])
    assert "none.gguf: " in wrong.stderr
    assert call("run", str(model), "Why?", "--max-tokens", "2", "--draft", str(model)).stdout
