"""Images in conversations: what is shared, how prompts are cut, and what is refused."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.encoding import ImageEncoder
from fewbit.images import open_picture
from fewbit.llm import images

from ..models.vision.zoo import FOLDER, golden, opened, question

NAME = "idefics3"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def llm() -> Any:
    with opened(f"{NAME}/model.gguf") as found:
        yield found


def greedy(llm: fb.LLM, messages: list[dict[str, Any]], **options: Any) -> Any:
    return llm.chat(messages, max_tokens=16, temperature=0, **options)


def test_an_image_is_encoded_once_and_its_prefix_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    original = ImageEncoder.begin

    def count(self: ImageEncoder, image: Any) -> Any:
        encoded.append(image)
        return original(self, image)

    monkeypatch.setattr(ImageEncoder, "begin", count)
    first, second = golden(NAME)["first"], golden(NAME)["second"]
    with opened(f"{NAME}/model.gguf") as llm:
        one = [{"role": "user", "content": [first, "What is it?"]}]
        alone = greedy(llm, one)
        assert alone.cached_tokens == 0
        assert len(encoded) == 1
        again = greedy(llm, [{"role": "user", "content": [first.copy(), "What is it, and where?"]}])
        assert again.cached_tokens >= 32
        other = greedy(llm, [{"role": "user", "content": [second, "What is it?"]}])
        assert other.cached_tokens < 32
        assert len(encoded) == 2
        changed = first.copy()
        changed[0, 0] ^= 255
        greedy(llm, [{"role": "user", "content": [changed, "What is it?"]}])
        assert len(encoded) == 3
        assert greedy(llm, one).tokens == alone.tokens


@pytest.mark.parametrize("name", ["gemma3", "idefics3", "qwen3vl_merger"])
def test_slices_of_an_encoder_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbit.engine.engine.MIN_SLICE", 0.0)
    monkeypatch.setattr("fewbit.engine.engine.MAX_SLICE", 0.0)
    with opened(f"{name}/model.gguf") as llm, ThreadPoolExecutor(2) as pool:
        beside = pool.submit(greedy, llm, [{"role": "user", "content": "a"}])
        answer = greedy(llm, question(name))
        assert [*answer.tokens] == golden(name)["greedy"].tolist()[: len(answer.tokens)]
        assert beside.result().tokens == greedy(llm, [{"role": "user", "content": "a"}]).tokens


@pytest.mark.parametrize("name", ["gemma3", "idefics3", "qwen3vl_merger"])
@pytest.mark.parametrize("size", [8, 23])
def test_prompts_are_cut_into_steps(name: str, size: int) -> None:
    with opened(f"{name}/model.gguf", max_batched_tokens=size) as llm:
        answer = greedy(llm, question(name), logprobs=1)
        assert [*answer.tokens] == golden(name)["greedy"].tolist()[: len(answer.tokens)]


def test_images_that_see_all_of_themselves_need_room_in_a_step() -> None:
    with (
        opened("gemma3/model.gguf", max_batched_tokens=7) as llm,
        pytest.raises(fb.RequestError, match="max_batched_tokens must be at least 8"),
    ):
        greedy(llm, question("gemma3"))


@pytest.mark.parametrize("name", ["gemma3", "idefics3", "qwen3vl_merger"])
def test_many_conversations_at_once(name: str) -> None:
    first, second = golden(name)["first"], golden(name)["second"]
    with opened(f"{name}/model.gguf") as llm:
        talks: list[list[dict[str, Any]]] = [
            [{"role": "user", "content": content}]
            for content in ([first, "a"], [second, "a"], "a", ["b", first], [second, first, "c"], [first, "ad"])
        ]
        alone = [[*greedy(llm, talk).tokens] for talk in talks]
    with opened(f"{name}/model.gguf", max_batched_tokens=32) as llm, ThreadPoolExecutor(6) as pool:
        together = [[*one.tokens] for one in pool.map(lambda talk: greedy(llm, talk), talks)]
    assert together == alone


def test_later_messages_may_have_images_too(llm: fb.LLM) -> None:
    first = golden(NAME)["first"]
    talk = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": [{"type": "image", "image": first}, {"type": "text", "text": "And this?"}]},
    ]
    text = llm.detokenize(llm.chat_prompt(talk))
    assert "Hello" in text
    assert "Hi!" in text
    assert llm.count_tokens(talk) == len(llm.chat_prompt(talk))
    assert greedy(llm, talk, n=2).outputs[1].tokens == greedy(llm, talk).tokens
    assert len(greedy(llm, talk, beams=2).tokens) > 0


def test_what_a_message_spells_is_no_image(llm: fb.LLM) -> None:
    first = golden(NAME)["first"]
    token = llm.tokenizer.token_id("<image>")
    plain = llm.chat_prompt([{"role": "user", "content": "<image> <fake_token_around_image>"}])
    assert token not in plain
    beside = llm.chat_prompt([{"role": "user", "content": ["<image>", first, "<image>"]}])
    assert beside.count(token) == 20
    with pytest.raises((fb.RequestError, fb.TemplateError), match="image"):
        greedy(llm, [{"role": "user", "content": ["<image>", first]}], trust_content=True)


def test_templates_that_know_no_images() -> None:
    first = golden(NAME)["first"]
    with opened(f"{NAME}/model.gguf") as llm:
        llm.tokenizer.chat_templates["default"] = TEMPLATE
        tokens = llm.chat_prompt([{"role": "user", "content": ["a", first, "b"]}])
        token = llm.tokenizer.token_id("<image>")
        assert tokens.count(token) == 20
        text = llm.detokenize(tokens)
        assert text.startswith("user: a<fake_token_around_image>")
        assert text.endswith("<fake_token_around_image>b\nassistant:")


def test_what_is_refused(llm: fb.LLM) -> None:
    first = golden(NAME)["first"]
    with pytest.raises(fb.RequestError, match="prompt_logprobs cannot be used together with images"):
        greedy(llm, [{"role": "user", "content": [first]}], prompt_logprobs=1)
    with pytest.raises(fb.RequestError, match="64 images, not 65"):
        greedy(llm, [{"role": "user", "content": [first] * 65}])
    with pytest.raises(fb.ImageError, match="message 0: this is no image"):
        greedy(llm, [{"role": "user", "content": [b"hello"]}])
    with pytest.raises(fb.RequestError, match=r'an image is \{"type": "image"'):
        greedy(llm, [{"role": "user", "content": [{"type": "image"}]}])
    with pytest.raises(fb.RequestError, match="not text"):
        greedy(llm, [{"role": "user", "content": [{"type": "input_audio"}]}])
    with pytest.raises(fb.TooLong):
        greedy(llm, [{"role": "user", "content": [first] * 9}])


def test_images_that_do_not_fit_keep_no_pixels(llm: fb.LLM) -> None:
    first, second = golden(NAME)["first"], golden(NAME)["second"]
    many = [{"role": "user", "content": [first, "a", second]}] * 16
    messages = llm.take_images(many)
    taken = [image for message in messages for image in message["content"] if image != "a"]
    kept = [len(one["image"].prepared.patches) > 0 for one in taken]
    assert kept == sorted(kept), "the oldest ones first"
    assert not kept[0]
    with pytest.raises(fb.TooLong, match="more tokens than the context"):
        llm.embed_images(messages, [])
    with pytest.raises(fb.TooLong):
        greedy(llm, many)


def test_one_image_is_opened_at_a_time(llm: fb.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = []

    def watched(source: Any) -> Any:
        opening.append(1)
        assert len(opening) == 1
        time.sleep(0.01)
        found = open_picture(source)
        opening.pop()
        return found

    monkeypatch.setattr(images, "open_picture", watched)
    talks = [[{"role": "user", "content": [golden(NAME)["first"]]}]] * 4
    with ThreadPoolExecutor(4) as pool:
        assert len([*pool.map(llm.take_images, talks)]) == 4


def test_models_that_read_text_only() -> None:
    with opened(f"{NAME}/model.gguf", mmproj="off") as llm:
        assert not llm.sees_images
        with pytest.raises(fb.RequestError, match="the model reads text only"):
            greedy(llm, [{"role": "user", "content": [np.zeros((2, 2, 3), np.uint8)]}])
        assert greedy(llm, [{"role": "user", "content": "hello"}]).tokens


def test_devices_that_take_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbit.devices.cpu.CpuDevice.takes_images", False)
    with opened(f"{NAME}/model.gguf") as llm:
        assert not llm.sees_images
        with pytest.raises(fb.RequestError, match="device 'cpu' takes no images"):
            greedy(llm, [{"role": "user", "content": [np.zeros((2, 2, 3), np.uint8)]}])
    with pytest.raises(fb.RequestError, match="takes no images; use device='cpu' or 'cuda', or mmproj='off'"):
        opened(f"{NAME}/model.gguf", mmproj=FOLDER / NAME / "mmproj.gguf")


def test_an_encoder_of_its_own_place(tmp_path: Any) -> None:
    for kind in ("model", "mmproj"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"{kind}.gguf").write_bytes((FOLDER / NAME / f"{kind}.gguf").read_bytes())
    options = {"kv": "f32", "activations": "exact"}
    with fb.LLM(tmp_path / "model" / "model.gguf", **options) as llm:
        assert not llm.sees_images
    with fb.LLM(tmp_path / "model" / "model.gguf", mmproj=tmp_path / "mmproj" / "mmproj.gguf", **options) as llm:
        assert [*greedy(llm, question(NAME)).tokens] == golden(NAME)["greedy"].tolist()
    broken = tmp_path / "model" / "mmproj.gguf"
    broken.write_bytes(b"hello")
    with pytest.warns(UserWarning, match="the model reads text only"):
        fb.LLM(tmp_path / "model" / "model.gguf", **options).close()
