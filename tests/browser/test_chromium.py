"""The page at /local in Chromium: models answer there as on the CPU, and what goes wrong is a sentence."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.devices.batch import Row
from fewbit.files.gguf import read_gguf, write_gguf
from fewbit.models import open_model
from fewbit.ops.sampling import SamplingParams, sample

pytest.importorskip("uvicorn")

from fewbit.server.app import make_app
from fewbit.server.pool import Pool
from fewbit.server.settings import Settings

from ..loading import load as load_model
from ..server.browser.fake import served
from ..webgpu.test_smollm2 import model_path
from .conftest import NAMES, ZOO, OpenPage

pytestmark = [pytest.mark.webgpu, pytest.mark.slow, pytest.mark.exhaustive]  # a software adapter compiles slowly

RECURRENT = ("qwen35", "lfm2moe", "nemotron_h")  # their states do not go back to any length
SAMPLED = {
    "seed": 5, "temperature": 1.5, "topK": 0, "topP": 0.9, "minP": 0.01, "maxTokens": 12, "repetitionPenalty": 1.4,
    "presencePenalty": 0.3, "frequencyPenalty": 0.6,
}  # fmt: skip
WRITES = """async ([bundle, url, prompt, count, params]) => {
  const { Model, Gpu, randomNumbers, serverPlanner } = await import(bundle);
  const gpu = await Gpu.open();
  const model = await Model.load(url, serverPlanner("local/plan"), { gpu, ctx: 128 });
  const logits = Array.from(await model.read(prompt));
  const again = [];
  for await (const _ of model.write(prompt.slice(0, 5), { temperature: 0, maxTokens: 2 })) again.push(_);
  const before = [model.runner.submissions, model.runner.reads];
  const tokens = [];
  for await (const _ of model.write(prompt, { temperature: 0, maxTokens: count, onToken: (t) => tokens.push(t) }));
  const steps = [model.runner.submissions - before[0], model.runner.reads - before[1]];
  const { reused } = model;
  const sampled = [];
  for await (const _ of model.write(prompt, { ...params, onToken: (t) => sampled.push(t) }));
  const random = randomNumbers(params.seed);
  const found = { logits, tokens, reused, steps, sampled, uniforms: sampled.map(() => random()), lost: gpu.lost };
  model.free();
  gpu.close();
  return found;
}"""


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_tokens(
    name: str, open_page: OpenPage, bundle: str, url: str, models: dict[str, fb.LLM]
) -> None:
    data = np.load(ZOO / name / "golden.npz")
    prompt, count = data["tokens"].tolist(), 6
    found = open_page().evaluate(WRITES, [bundle, f"{url}local/models/{name}", prompt, count, SAMPLED])
    logits, expected = np.array(found["logits"]), data["logits"][len(prompt) - 1]
    assert np.abs(logits - expected).max() <= 3e-3 * np.abs(expected).max()
    llm = models[name]
    wanted = llm.generate(prompt, max_tokens=count, temperature=0.0).tokens
    assert found["tokens"] == list(wanted)
    assert found["reused"] == (0 if name in RECURRENT else 5)
    # One submission and one round trip a token: the rest of the prompt gives the first.
    assert found["steps"] == [len(wanted)] * 2
    assert found["lost"] == ""
    check_sampled(name, prompt, found["sampled"], found["uniforms"])


def check_sampled(name: str, prompt: list[int], tokens: list[int], uniforms: list[float]) -> None:
    """Each token is what the reference samples from the CPU's logits, but where rounding decides."""
    params = SamplingParams(
        temperature=1.5, top_k=0, top_p=0.9, min_p=0.01, repetition_penalty=1.4, presence_penalty=0.3,
        frequency_penalty=0.6,
    )  # fmt: skip
    assert len(tokens) >= 4
    loaded, wrong = load_model(open_model(ZOO / name / "model.gguf"), kv="f16", exact=True, threads=1), 0
    for n, (token, uniform) in enumerate(zip(tokens, uniforms, strict=True)):
        logits = np.array(loaded.forward([Row(loaded.cache.new(), [*prompt, *tokens[:n]], 1)]))
        counts = Counter(tokens[:n])
        ids = sorted({*prompt, *counts})
        seen = np.array(ids, np.int32), np.array([counts[one] for one in ids], np.int32)
        near = {int(sample(logits, [params], [u], [seen])[0][0]) for u in (uniform, uniform - 1e-3, uniform + 1e-3)}
        wrong += token not in near
    assert wrong == 0


def load(page: Any, file: Path) -> None:
    page.set_input_files("#file", file)
    page.wait_for_selector("#composer:visible, #problem:visible")


def say(page: Any, text: str) -> None:
    page.fill("#input", text)
    page.press("#input", "Enter")
    page.wait_for_selector("#send:visible")


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a chat template."""
    path = tmp_path_factory.mktemp("picked") / "chatty.gguf"
    with read_gguf(ZOO / "llama/model.gguf") as file:
        template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
        metadata = {**file.typed_metadata, "tokenizer.chat_template": template}
        write_gguf(path, metadata, {name: file.tensors[name] for name in file.infos})
    return path


def test_a_file_is_picked_and_answers_as_on_the_cpu(chatty: Path, open_page: OpenPage) -> None:
    page = open_page()
    page.evaluate("localStorage.setItem('fewbit.local', JSON.stringify({ temperature: 0, maxTokens: 6, ctx: 128 }))")
    load(page, chatty)
    assert page.inner_text("#title") == "chatty"
    say(page, "the order of <|end|> things")
    shown = page.locator(".assistant .markdown").inner_text()
    with fb.LLM(chatty, ctx=128, kv="f16", exact=True, threads=1) as llm:
        message = {"role": "user", "content": "the order of <|end|> things"}
        wanted = llm.chat([message], max_tokens=6, temperature=0.0).text
    assert shown.split() == wanted.split()
    assert "of 128 tokens" in page.inner_text("#figures")
    page.click("#unload")
    assert page.is_visible("#choose")


def test_an_image_is_not_taken(chatty: Path, open_page: OpenPage) -> None:
    page = open_page()
    load(page, chatty)
    for kind, name in (("paste", "clipboardData"), ("drop", "dataTransfer")):
        page.evaluate("document.getElementById('toast').replaceChildren()")
        page.evaluate(
            """([kind, name]) => {
              const data = new DataTransfer();
              data.items.add(new File(["x"], "a.png", { type: "image/png" }));
              const Kind = { paste: ClipboardEvent, drop: DragEvent }[kind];
              const event = new Kind(kind, { [name]: data, bubbles: true, cancelable: true });
              document.getElementById("input").dispatchEvent(event);
            }""",
            [kind, name],
        )
        page.wait_for_selector("#toast:has-text('Models on this page read text alone: the image was not taken.')")
    assert page.locator(".message").count() == 0


def test_a_lost_gpu_is_a_sentence_and_the_model_can_be_loaded_again(chatty: Path, open_page: OpenPage) -> None:
    page = open_page()
    page.evaluate("localStorage.setItem('fewbit.local', JSON.stringify({ temperature: 0, maxTokens: 100, ctx: 128 }))")
    page.evaluate("""() => {
      const { requestDevice } = GPUAdapter.prototype;
      GPUAdapter.prototype.requestDevice = async function (...given) {
        return (globalThis.lastDevice = await requestDevice.apply(this, given));
      };
    }""")
    load(page, chatty)
    page.fill("#input", "hello")
    page.press("#input", "Enter")
    page.wait_for_selector("#figures:has-text('tok/s')")
    page.evaluate("lastDevice.destroy()")
    page.wait_for_selector(".assistant .error")
    text = page.inner_text(".assistant .error")
    assert "the GPU was lost: load the model again" in text
    page.get_by_role("button", name="Load again").click()
    load(page, chatty)
    page.evaluate("localStorage.setItem('fewbit.local', JSON.stringify({ temperature: 0, maxTokens: 3, ctx: 128 }))")
    say(page, "hello")
    assert page.locator(".error:visible").count() == 0


def test_files_that_are_no_model_and_servers_that_refuse(chatty: Path, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(allowed=("400", "Failed to load resource"))
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"<html>" + bytes(100))
    load(page, wrong)
    assert "is not a GGUF file" in page.inner_text("#problem")
    wrong.write_bytes(chatty.read_bytes()[:9000])
    load(page, wrong)
    assert "truncated or damaged" in page.inner_text("#problem")
    with read_gguf(ZOO / "gemma4-moe/model.gguf") as file:
        load(page, file.path)
    assert "the browser" in page.inner_text("#problem")
    load(page, chatty)
    assert page.is_visible("#composer")


def test_a_gpu_that_lacks_something(chatty: Path, open_page: OpenPage) -> None:
    page = open_page()
    page.evaluate("""() => {
      globalThis.kept = GPU.prototype.requestAdapter;
      GPU.prototype.requestAdapter = async () => null;
    }""")
    load(page, chatty)
    assert page.inner_text("#problem") == "this browser has WebGPU, but found no GPU that it can use"
    page.evaluate("""() => {
      GPU.prototype.requestAdapter = kept;
      const { popErrorScope } = GPUDevice.prototype;
      GPUDevice.prototype.popErrorScope = async function () {
        await popErrorScope.apply(this);
        GPUDevice.prototype.popErrorScope = popErrorScope;
        return new GPUOutOfMemoryError("none left");
      };
    }""")
    load(page, chatty)
    text = "no memory for the model: the GPU is out of memory; take a smaller model or context"
    assert page.inner_text("#problem") == text
    page.evaluate("""() => {
      const none = { get: () => new Set() };
      for (const kind of [GPUAdapter, GPUDevice]) Object.defineProperty(kind.prototype, "features", none);
      localStorage.setItem('fewbit.local', JSON.stringify({ temperature: 0, maxTokens: 2, ctx: 128 }));
    }""")
    load(page, chatty)
    say(page, "hello")
    assert page.locator(".error:visible").count() == 0


def test_the_default_model_writes_what_the_cpu_writes(chromium: Any) -> None:
    """32 greedy tokens of SmolLM2, from the page that a server offers."""
    path, question = model_path(), "Why is the sky blue?"
    with fb.LLM(path, ctx=256, kv="f16", exact=True, threads=1) as llm:
        wanted = llm.chat([{"role": "user", "content": question}], max_tokens=32, temperature=0.0).text
        app = make_app(Settings(share_models=True), Pool.of(llm), close_pool=False)
        with served(app) as url:
            page = chromium.new_page()
            page.set_default_timeout(1_800_000)
            page.goto(f"{url}local")
            page.evaluate(
                "localStorage.setItem('fewbit.local', JSON.stringify({ temperature: 0, maxTokens: 32, ctx: 256 }))"
            )
            page.click("#shared button")
            page.wait_for_selector("#composer:visible, #problem:visible")
            say(page, question)
            assert page.locator(".assistant .markdown").inner_text().split() == wanted.split()
            page.close()
