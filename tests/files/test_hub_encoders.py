"""Image encoders beside models in repositories: found by name, fetched with the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fewbit.encoding import file_beside

from .hub_processes import MODEL, REPOSITORY, find_all, needs_library
from .hub_server import Site

pytestmark = [pytest.mark.usefixtures("hub_environment"), needs_library]


@pytest.fixture
def site(hub_site: Site) -> Site:
    return hub_site


def test_the_image_encoder_of_a_repository(site: Site) -> None:
    site.add_repository("org/m", {**REPOSITORY, "mmproj-Q8_0.gguf": MODEL + b"mm Q8_0", "m-mmproj.txt": b""})
    (path,) = find_all("hf:org/m")
    assert file_beside(Path(path)) is None  # nobody asked for it
    usual, eight, named = find_all("hf:org/m", "hf:org/m:q8_0", "hf:org/m:mmproj-Q8_0.gguf", encoder=True)
    assert usual == path
    beside = [file_beside(Path(found)) for found in (usual, eight)]
    assert [found and found.name for found in beside] == ["mmproj-F16.gguf", "mmproj-Q8_0.gguf"]
    assert named == str(beside[1])
    count = len(site.log)
    assert find_all("hf:org/m", ("hf:org/m", True), encoder=True) == [path, path]
    assert len(site.log) == count  # also that there is one is known
    assert beside[0] is not None
    beside[0].resolve().unlink()
    assert find_all("hf:org/m", encoder=True) == [path]
    assert beside[0].read_bytes() == REPOSITORY["mmproj-F16.gguf"]


def test_an_image_encoder_in_the_folder_around_the_models(site: Site) -> None:
    files = {"Q4_0/m-Q4_0.gguf": MODEL, "mmproj-m-BF16.gguf": MODEL + b"mm", "other/mmproj-m-F16.gguf": MODEL}
    site.add_repository("org/m", files)
    (path,) = find_all("hf:org/m", encoder=True)
    found = file_beside(Path(path))
    assert found is not None
    assert found.name == "mmproj-m-BF16.gguf"
    offline, model = find_all(("hf:org/m:q4_0", True), "hf:org/m:mmproj-m-BF16.gguf")
    assert (offline, model) == (path, str(found))


def test_the_settings_of_the_image_processor_of_a_checkpoint(site: Site) -> None:
    tensors = b"\x02\0\0\0\0\0\0\0{}"
    names = ("config.json", "preprocessor_config.json", "processor_config.json")
    site.add_repository("org/c", {**dict.fromkeys(names, b"{}"), "model.safetensors": tensors})
    (path,) = find_all("hf:org/c")
    assert all(Path(path).with_name(name).is_file() for name in names)


def test_a_model_of_a_repository_sees(site: Site, tmp_path: Path) -> None:
    seeing = Path(__file__).parents[1] / "vision_zoo" / "qwen2vl_merger"
    files = {
        name: (seeing / f"{name.partition('-')[0]}.gguf").read_bytes() for name in ("model-F32.gguf", "mmproj-F32.gguf")
    }
    site.add_repository("org/see", files)
    picture = tmp_path / "red.png"
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGB", (60, 40), "red").save(picture)
    run = [sys.executable, "-m", "fewbit", "run", "hf:org/see", "What?", "--max-tokens", "2", "--temp", "0"]
    look = [*run, "--image", str(picture)]
    blind = subprocess.run([*look, "--mmproj", "off"], capture_output=True, text=True, check=False)
    assert "the model reads text only" in blind.stderr
    assert not list(tmp_path.rglob("mmproj*"))
    named = subprocess.run(
        [*look, "--mmproj", "hf:org/see:mmproj-F32.gguf"], capture_output=True, text=True, check=True
    )
    found = subprocess.run(look, capture_output=True, text=True, check=True)
    assert named.stdout == found.stdout
