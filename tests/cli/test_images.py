"""Pictures in `fewbit run` and `fewbit chat`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

import fewbit as fb
from fewbit.cli import main
from fewbit.cli.conversation import is_message
from fewbit.cli.images import checked_path, for_server, text_of_content, with_images

from ..models.vision.zoo import FOLDER, golden

MODEL = str(FOLDER / "gemma3" / "model.gguf")


def run(*args: str, input: str = "") -> Result:
    return CliRunner().invoke(main, args, input=input)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a picture.png"
    Image.fromarray(golden("gemma3")["first"]).save(path)
    return path


def test_run_shows_a_picture(picture: Path) -> None:
    arguments = ["run", MODEL, "What is it?", "--temp", "0", "-n", "8", "--json"]
    seen = json.loads(run(*arguments, "--image", str(picture)).stdout)
    blind = json.loads(run(*arguments).stdout)
    twice = json.loads(run(*arguments, "--image", str(picture), "--image", str(picture)).stdout)
    assert blind["prompt_tokens"] < seen["prompt_tokens"] < twice["prompt_tokens"]


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"hello, world")
    found = run("run", MODEL, "What is it?", "--image", str(path))
    assert found.exit_code == 1
    assert "no image of a known format" in found.stderr
    found = run("run", MODEL, "What is it?", "--image", str(tmp_path / "b.png"))
    assert found.exit_code == 1
    assert "there is no such file" in found.stderr
    found = run("run", MODEL, "What is it?", "--image", str(path), "--raw")
    assert found.exit_code == 2


def test_pictures_in_a_conversation(picture: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    lines = [f"/image {picture}", "/image", "What is it?", "And now?", f"/save {saved}"]
    found = run("chat", MODEL, "--temp", "0", "-n", "4", input="\n".join(lines) + "\n")
    assert found.exit_code == 0, found.stderr
    assert "a picture.png" in found.output
    messages = json.loads(saved.read_text())
    assert [part["type"] for part in messages[0]["content"]] == ["image", "text"]
    assert messages[2]["content"] == "And now?"
    again = run("chat", MODEL, "--temp", "0", "-n", "4", input=f"/load {saved}\nMore?\n")
    assert again.exit_code == 0, again.stderr


def test_names_as_terminals_write_them(picture: Path) -> None:
    written = [str(picture), f"'{picture}'", f'"{picture}"', str(picture).replace(" ", "\\ ")]
    assert [checked_path(one) for one in written] == [str(picture)] * 4
    for wrong in (f"{picture} {picture}", f"'{picture}", str(picture.parent)):
        with pytest.raises(fb.FewbitError, match="there is no such file"):
            checked_path(wrong)


def test_contents(picture: Path) -> None:
    content = with_images("What?", [str(picture)])
    assert is_message({"role": "user", "content": content})
    assert not is_message({"role": "user", "content": [{"type": "image", "image": 3}]})
    assert not is_message({"role": "user", "content": []})
    assert text_of_content(content) == "What?"
    (sent,) = for_server([{"role": "user", "content": content}])
    assert sent["content"][0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
