"""The calls of a user's first hour, as README.md and docs/python.md show them; test_typing.py checks and runs them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

import fewbit as fb

Array = npt.NDArray[np.float32]


def generate(llm: fb.LLM) -> list[str]:
    answer: fb.Completion = llm.generate("Once upon a time", max_tokens=4)
    text: str = answer.text + f"{answer:>40}" + str(answer) + (answer + "!")
    rate: float = answer.decode_tokens_per_second
    several: list[fb.Completion] = llm.generate(["One", "Two"], n=2, seed=1, max_tokens=4)
    outputs: list[fb.Completion] = [output for first in several for output in first.outputs]
    of_ids: fb.Completion = llm.generate([1, 2, 3], max_tokens=4, stop=["."], temperature=0)
    batches: list[fb.Completion] = llm.generate([[1, 2, 3], [4, 5]], max_tokens=2, progress=lambda done, total: None)
    logprobs: list[fb.TokenLogprob] | None = llm.generate("a", logprobs=2, max_tokens=2).logprobs
    options: fb.Options = {"max_tokens": 2, "top_k": 10, "n": 3}
    three: fb.Completion = llm.generate("One", **options)
    pieces: list[str] = list(llm.stream("Once", max_tokens=4))
    with llm.stream("Once", max_tokens=4) as stream:
        for piece in stream:
            pieces.append(piece)
    whole: fb.Completion = stream.completion
    assert "x" not in of_ids or logprobs
    assert len(outputs) == 4
    assert len(three.outputs) == 3
    assert rate >= 0
    assert (several[1].prompt_index, outputs[1].index) == (1, 1)
    return [text, *pieces, str(whole.to_dict()["text"]), *(one.finish_reason for one in batches)]


def chat(llm: fb.LLM) -> list[str]:
    messages = [{"role": "user", "content": "Name three colors."}]
    answer: fb.Completion = llm.chat(messages, max_tokens=4, temperature=0)
    with llm.chat(messages, stream=True, max_tokens=4) as stream:
        pieces: list[str] = list(stream)
    several: list[fb.Completion] = llm.chat([messages, messages], max_tokens=4)
    drafts: list[fb.Completion] = llm.chat(messages, n=2, max_tokens=4).outputs
    begun = [*messages, {"role": "assistant", "content": "Red, "}]
    rest: fb.Completion = llm.chat(begun, continue_final_message=True, max_tokens=4)
    count: int = llm.count_tokens(messages)
    template: fb.ChatTemplate = llm.template
    prompt: str = template.render(messages, add_generation_prompt=True)
    assert llm.can_chat
    assert count == len(llm.chat_prompt(messages)) == answer.prompt_tokens
    return [prompt, rest.text, *pieces, *(one.text for one in [*several, *drafts])]


async def event_loop(llm: fb.LLM) -> list[str]:
    messages = [{"role": "user", "content": "hi"}]
    answer: fb.Completion = await llm.agenerate("Once", max_tokens=4)
    several: list[fb.Completion] = await llm.agenerate(["Once", "Twice"], max_tokens=4)
    talk: fb.Completion = await llm.achat(messages, max_tokens=4)
    async with llm.astream("Once", max_tokens=4) as stream:
        pieces: list[str] = [piece async for piece in stream]
    talks: fb.AsyncStream = await llm.achat(messages, stream=True, max_tokens=4)
    pieces += [piece async for piece in talks]
    vectors: Array = await llm.aembed(["a", "b"])
    return [answer.text, talk.text, *(one.text for one in several), *pieces, str(vectors.shape)]


def embed(llm: fb.LLM) -> Array:
    vector: Array = llm.embed("a cat")
    vectors: Array = llm.embed(["a cat", "", "a kitten"], truncate=True, progress=True)
    cosines: Array = vectors @ vectors.T
    assert vector.shape == vectors[0].shape
    return cosines


def text(llm: fb.LLM, path: Path) -> list[int]:
    tokenizer: fb.Tokenizer = fb.Tokenizer.from_gguf(path)
    ids: list[int] = tokenizer.encode("The capital of France is Paris.", add_special=True)
    back: str = llm.detokenize(llm.tokenize("Paris")) + tokenizer.decode(ids)
    assert back
    scores: Array = llm.score(ids)
    assert scores.shape == (len(ids) - 1,)
    return ids


def matrices() -> float:
    rng = np.random.default_rng(0)
    weights: Array = rng.standard_normal((64, 256), dtype=np.float32)
    x: Array = rng.standard_normal(256, dtype=np.float32)
    w: fb.QuantTensor = fb.quantize(weights, "q4_k")
    y: Array = fb.linear(x, w)
    a: fb.Activations = fb.quantize_activations(x, w.format)
    fb.linear(a, w, out=y)
    q, k = fb.linear_many(x, [w, w])
    h: Array = fb.linear_gated(x, w, w, "silu")
    grad: Array = fb.linear_backward(y, w)
    assert grad.shape == x.shape
    fast: fb.QuantTensor = fb.repack(w)
    near: Array = fb.linear(x, fast, activations="int16")
    back: Array = w.dequantize()
    same: fb.QuantTensor = fb.QuantTensor.from_bytes(w.to_bytes(), w.shape, "q4_k")
    fmt: fb.Format = fb.format("q8_0")
    assert fmt.name in fb.formats()
    assert (q.shape, k.shape, h.shape, near.shape, back.shape) == ((64,), (64,), (64,), (64,), (64, 256))
    return w.bits_per_weight + same.nbytes


def kv_cache() -> int:
    rng = np.random.default_rng(0)
    cache: fb.KVCache = fb.KVCache(layers=1, kv_heads=2, dim=64, tokens=256, k="q8_0", v="q4_0")
    prompt = list(range(40))
    sequence: int = cache.new(prompt)
    step = cache.reserve([(sequence, 40 - cache.length(sequence))])
    rows: Array = rng.standard_normal((40, 2, 64), dtype=np.float32)
    cache.append(0, step, rows, rows)
    y: Array = cache.attend(0, step, rng.standard_normal((40, 8, 64), dtype=np.float32))
    cache.commit(sequence, prompt)
    fork: int = cache.fork(sequence)
    assert y.shape == (40, 8, 64)
    return cache.length(fork)


def files(path: Path, folder: Path) -> list[str]:
    with fb.read_gguf(path) as file:
        fb.write_gguf(folder / "copy.gguf", file.metadata, dict(file.tensors))
        return [*file.tensors]


def errors(llm: fb.LLM) -> list[str]:
    found = []
    try:
        llm.generate("Once", max_tokens=-1)
    except fb.RequestError as error:
        found.append(str(error))
    try:
        llm.generate("x" * 10**6)
    except fb.TooLong as error:
        found.append(str(error))
    try:
        fb.SamplingParams(top_p=2)
    except fb.FewbitError as error:
        found.append(str(error))
    return found


def main(model: Path, encoder: Path, folder: Path) -> None:
    with fb.LLM(model, kv="q8_0", ctx=256) as llm:
        print(*generate(llm), *chat(llm), *asyncio.run(event_loop(llm)), *text(llm, model), *errors(llm))
        sampling: fb.SamplingParams = llm.sampling
        print(llm, sampling.temperature)
    with fb.LLM(encoder) as bert:
        print(embed(bert))
    print(matrices(), kv_cache(), files(model, folder))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
