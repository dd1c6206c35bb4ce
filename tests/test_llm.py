"""LLM on a toy runner: text in, text out, from threads and event loops."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from fewbit.completion import Completion
from fewbit.engine.contract import Chunk
from fewbit.errors import DtypeError, FewbitError, RequestError, TemplateError
from fewbit.llm import LLM, AsyncStream, Stream
from fewbit.ops import sampling
from fewbit.ops.sampling import Rule
from fewbit.options import Options, read_options
from fewbit.text.letters import BYTE_LETTERS
from fewbit.text.tokenizer import Tokenizer

from .engine.toy import Toy, logits_of
from .text.samples import metadata, pieces

SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>"]
TOKENS = [*BYTE_LETTERS, *SPECIAL]
START, END, BOS = (TOKENS.index(token) for token in SPECIAL)
WARM: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def byte_tokenizer(**more: Any) -> Tokenizer:
    """A token for each byte, and three special ones."""
    kinds = [1] * 256 + [3] * len(SPECIAL)
    more = {"token_type": kinds, "bos_token_id": BOS, "eos_token_id": END, **more}
    return Tokenizer.from_metadata(metadata(TOKENS, **more))


class Endless(Toy):
    """It never ends its turn."""

    def __init__(self, ctx: int = 200_000, pages: int = 50_000) -> None:
        super().__init__(vocab=len(TOKENS), ctx=ctx, pages=pages)

    def forward(self, chunks: Sequence[Chunk]) -> Any:
        logits = super().forward(chunks)
        logits[:, END] = -np.inf
        return logits


def make(toy: Toy | None = None, **more: Any) -> LLM:
    return LLM.from_parts(toy or Endless(200, 64), byte_tokenizer(**more))


def endless_logits_of(tokens: list[int]) -> Any:
    logits = logits_of(tokens, len(TOKENS))
    logits[:, END] = -np.inf
    return logits


def one(answer: Completion | list[Completion]) -> Completion:
    assert isinstance(answer, Completion)
    return answer


def many(answer: Completion | list[Completion]) -> list[Completion]:
    assert isinstance(answer, list)
    return answer


def bytes_of(tokens: list[int]) -> bytes:
    return bytes(BYTE_LETTERS[TOKENS[token]] for token in tokens)


@pytest.fixture
def llm() -> Any:
    with make() as llm:
        yield llm


def test_generate_gives_the_text_of_the_tokens(llm: LLM) -> None:
    answer = one(llm.generate("Once", max_tokens=30, seed=1, **WARM))
    assert answer.text == str(answer) == llm.detokenize(answer.tokens)
    assert (answer.finish_reason, len(answer.tokens), answer.prompt_tokens) == ("length", 30, 4)
    assert answer.logprobs is None
    assert answer.prefill_tokens_per_second > 0
    assert answer.decode_tokens_per_second > 0
    assert one(llm.generate("Once", max_tokens=30, seed=1, **WARM)).tokens == answer.tokens


def test_token_ids_and_text_are_the_same_prompt(llm: LLM) -> None:
    text, ids = (one(llm.generate(p, max_tokens=5, seed=1)) for p in ("Once", llm.tokenize("Once")))
    assert text.tokens == ids.tokens == one(llm.generate(np.array(llm.tokenize("Once")), max_tokens=5, seed=1)).tokens


def test_several_prompts_and_several_answers(llm: LLM) -> None:
    prompts = ["a", llm.tokenize("bb")]
    answers = many(llm.generate(prompts, max_tokens=4, n=3, seed=5, **WARM))
    assert [answer.prompt_tokens for answer in answers] == [1, 1, 1, 2, 2, 2]
    for i, answer in enumerate(answers):
        alone = one(llm.generate(prompts[i // 3], max_tokens=4, seed=5 + i % 3, **WARM))
        assert answer.tokens == alone.tokens
    assert len(many(llm.generate(["a"], max_tokens=1))) == 1
    assert len(many(llm.generate("a", n=2, max_tokens=1))) == 2


def test_the_end_of_the_turn() -> None:
    class Ends(Toy):
        def forward(self, chunks: Sequence[Chunk]) -> Any:
            logits = super().forward(chunks)
            if any(self.cache.length(chunk.sequence) >= 6 for chunk in chunks):
                logits[:, END] = 100
            return logits

    with make(Ends(vocab=len(TOKENS))) as llm:
        answer = one(llm.generate("Once", temperature=0, logprobs=1))
        assert (len(answer.tokens), answer.finish_reason) == (2, "stop")
        assert answer.logprobs is not None
        assert len(answer.logprobs) == 2


def test_special_tokens_in_a_prompt_are_plain_text(llm: LLM) -> None:
    answer = one(llm.generate("<|im_start|>", max_tokens=1))
    assert answer.prompt_tokens == len("<|im_start|>")


def test_a_prompt_gets_the_tokens_that_the_model_wants_around_it() -> None:
    with make(add_bos_token=True) as llm:
        assert one(llm.generate("ab", max_tokens=1)).prompt_tokens == 3
        assert one(llm.generate("", max_tokens=1)).prompt_tokens == 1
        assert one(llm.generate(llm.tokenize("ab"), max_tokens=1)).prompt_tokens == 2


def test_stop_strings(llm: LLM) -> None:
    """Wherever a stop string is found, the answer ends before it, and a stream shows nothing of it."""
    free = one(llm.generate("Once", max_tokens=40, seed=3, **WARM))
    for at in range(0, 12, 3):
        stop = free.text[at : at + 3]
        cut = free.text[: free.text.index(stop)]
        answer = one(llm.generate("Once", max_tokens=40, seed=3, stop=["never", stop], **WARM))
        assert (answer.text, answer.finish_reason) == (cut, "stop")
        assert answer.tokens == free.tokens[: len(answer.tokens)]
        assert len(answer.tokens) < 40
        stream = llm.stream("Once", max_tokens=40, seed=3, stop=stop, **WARM)
        assert "".join(stream) == stream.completion.text == cut


def test_a_stop_string_that_only_begins_is_shown(llm: LLM) -> None:
    free = one(llm.generate("Once", max_tokens=10, seed=3, **WARM))
    answer = one(llm.generate("Once", max_tokens=10, seed=3, stop=free.text[-2:] + "more", **WARM))
    assert (answer.text, answer.finish_reason) == (free.text, "length")


def test_stop_strings_in_a_batch(llm: LLM) -> None:
    free = many(llm.generate(["a", "b"], max_tokens=30, n=2, seed=3, **WARM))
    stop = [free[0].text[4:6], free[2].text[7:9]]
    for answer, whole in zip(
        many(llm.generate(["a", "b"], max_tokens=30, n=2, seed=3, stop=stop, **WARM)), free, strict=True
    ):
        ends = [whole.text.index(one) + len(one) for one in stop if one in whole.text]
        assert answer.finish_reason == ("stop" if ends else "length")
        assert whole.text.startswith(answer.text)


def test_stream_pieces_are_whole_characters(llm: LLM) -> None:
    prompt = "Once"
    whole = one(llm.generate(prompt, max_tokens=100, seed=4, **WARM))
    stream = llm.stream(prompt, max_tokens=100, seed=4, **WARM)
    with stream:
        parts = list(stream)
    assert "".join(parts) == whole.text == stream.completion.text
    assert all(parts)
    assert stream.completion.tokens == whole.tokens
    assert list(stream) == []


def test_a_stream_that_is_not_over_has_no_completion(llm: LLM) -> None:
    stream = llm.stream("Once", max_tokens=None, **WARM)
    next(stream)
    with pytest.raises(FewbitError, match="the answer is not complete yet"):
        _ = stream.completion
    stream.close()
    stream.close()
    assert stream.completion.finish_reason == "cancelled"
    assert 1 <= len(stream.completion.tokens) < 196
    assert list(stream) == []


def test_a_stream_that_is_dropped_is_cancelled() -> None:
    with make(Endless()) as llm:
        next(llm.stream("Once", max_tokens=None, **WARM))
        gc.collect()
        one(llm.generate("Twice", max_tokens=1))
        assert llm.engine.stats().active == 0


def test_a_stream_outlives_its_llm() -> None:
    stream = make().stream("Once", max_tokens=5, **WARM)
    gc.collect()
    assert len("".join(stream)) > 0
    assert len(stream.completion.tokens) == 5


def test_logprobs(llm: LLM) -> None:
    answer = one(llm.generate("Once", max_tokens=4, seed=1, logprobs=3, **WARM))
    logits = endless_logits_of(llm.tokenize("Once") + answer.tokens)[3:-1]
    assert answer.logprobs is not None
    assert [of.token for of in answer.logprobs] == answer.tokens
    assert [of.bytes for of in answer.logprobs] == [bytes_of([token]) for token in answer.tokens]
    own = sampling.log_probabilities(logits, answer.tokens)
    np.testing.assert_allclose([of.logprob for of in answer.logprobs], own, rtol=1e-5)
    for row, of in zip(logits, answer.logprobs, strict=True):
        tokens, logprobs = sampling.top_tokens(row, 3)
        assert [top.token for top in of.top] == tokens.tolist()
        np.testing.assert_allclose([top.logprob for top in of.top], logprobs, rtol=1e-5)
        assert all(top.text == top.bytes.decode("utf-8", "replace") for top in of.top)


def test_logprobs_end_where_a_stop_string_ends_the_answer(llm: LLM) -> None:
    free = one(llm.generate("Once", max_tokens=20, seed=3, **WARM))
    answer = one(llm.generate("Once", max_tokens=20, seed=3, stop=free.text[5:7], logprobs=0, **WARM))
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.tokens) < 20


def test_score(llm: LLM) -> None:
    text = llm.tokenize("It was a dark and stormy night." * 4)
    wanted = sampling.log_probabilities(endless_logits_of(text)[:-1], text[1:])
    np.testing.assert_allclose(llm.score(text), wanted, rtol=1e-5)
    assert llm.score(text).dtype == np.float32
    assert llm.score([7]).shape == (0,)
    with pytest.raises(RequestError, match="it has no tokens"):
        llm.score([])
    with pytest.raises(DtypeError, match="tokens are integers"):
        llm.score("text")  # type: ignore[arg-type]


def test_chat_renders_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompt = [START, *llm.tokenize("user\nhi"), END, *llm.tokenize("\n"), START, *llm.tokenize("assistant\n")]
    answer = one(llm.chat(messages, max_tokens=5, seed=2, **WARM))
    assert answer.prompt_tokens == len(prompt)
    assert answer.tokens == one(llm.generate(prompt, max_tokens=5, seed=2, **WARM)).tokens
    stream = llm.chat(messages, stream=True, max_tokens=5, seed=2, **WARM)
    assert isinstance(stream, Stream)
    assert "".join(stream) == answer.text
    assert len(many(llm.chat(messages, n=2, max_tokens=2))) == 2


def test_chat_writes_bos_once() -> None:
    tokenizer = byte_tokenizer(add_bos_token=True)
    tokenizer.chat_templates["default"] = "{{ bos_token }}{{ messages[0].content }}{{ tools | length if tools }}"
    llm = LLM.from_parts(Toy(vocab=len(TOKENS)), tokenizer)
    with llm:
        assert one(llm.chat([{"role": "user", "content": "hi"}], max_tokens=1)).prompt_tokens == 3
        tools = [{"type": "function"}]
        assert one(llm.chat([{"role": "user", "content": "hi"}], tools=tools, max_tokens=1)).prompt_tokens == 4


def test_an_answer_continues_its_prompt() -> None:
    """Where the encoder puts a space before a text, an answer that begins with a word keeps it."""
    tokenizer = Tokenizer.from_metadata(pieces("▁a", "▁b"))
    a, b = (tokenizer.token_id(text) for text in ("▁a", "▁b"))

    class Says(Toy):
        def forward(self, chunks: Sequence[Chunk]) -> Any:
            logits = super().forward(chunks)
            logits[:, b] = 100
            return logits

    with LLM.from_parts(Says(vocab=tokenizer.vocab_size), tokenizer) as llm:
        assert one(llm.generate([a], max_tokens=2, temperature=0)).text == " b b"
        assert one(llm.generate([1], max_tokens=2, temperature=0)).text == "b b"  # after BOS a text begins
        assert "".join(llm.stream("a", max_tokens=2, temperature=0)) == " b b"


def test_threads(llm: LLM) -> None:
    alone = [one(llm.generate(f"prompt {i}", max_tokens=20, seed=i, **WARM)).text for i in range(8)]
    found: dict[int, list[str]] = {}

    def ask(i: int) -> None:
        stream = llm.stream(f"prompt {i}", max_tokens=20, seed=i, **WARM)
        whole = one(llm.generate(f"prompt {i}", max_tokens=20, seed=i, **WARM)).text
        found[i] = ["".join(stream), whole]
        llm.score(llm.tokenize("some text"))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [alone[i]] * 2 for i in range(8)}


def test_async(llm: LLM) -> None:
    alone = [one(llm.generate(f"prompt {i}", max_tokens=20, seed=i, **WARM)).text for i in range(6)]
    messages = [{"role": "user", "content": "hi"}]
    chat = one(llm.chat(messages, max_tokens=20, seed=1, **WARM)).text

    async def stream(i: int) -> str:
        async with llm.astream(f"prompt {i}", max_tokens=20, seed=i, **WARM) as pieces:
            text = "".join([piece async for piece in pieces])
        assert pieces.completion.text == text
        return text

    async def whole(i: int) -> str:
        return one(await llm.agenerate(f"prompt {i}", max_tokens=20, seed=i, **WARM)).text

    async def main() -> list[str]:
        talk = await llm.achat(messages, max_tokens=20, seed=1, stream=True, **WARM)
        assert isinstance(talk, AsyncStream)
        assert "".join([piece async for piece in talk]) == chat
        assert str(await llm.achat(messages, max_tokens=20, seed=1, **WARM)) == chat
        assert len(many(await llm.agenerate(["a", "b"], max_tokens=2, stop="never"))) == 2
        return await asyncio.gather(*map(stream, range(6)), *map(whole, range(6)))

    assert asyncio.run(main()) == alone * 2


def test_async_cancelling_stops_the_request() -> None:
    llm = make(Endless())

    async def main() -> None:
        task = asyncio.create_task(llm.agenerate("Once", max_tokens=None, **WARM))
        stream = llm.astream("Once", max_tokens=None, **WARM)
        await anext(stream)
        task.cancel()
        await stream.aclose()
        assert stream.completion.finish_reason == "cancelled"
        assert [piece async for piece in stream] == []
        with pytest.raises(asyncio.CancelledError):
            await task

    with llm:
        asyncio.run(main())
        one(llm.generate("Twice", max_tokens=1))
        assert llm.engine.stats().active == 0


def test_async_when_the_event_loop_is_gone() -> None:
    async def main(llm: LLM) -> AsyncStream:
        stream = llm.astream("Once", max_tokens=None, **WARM)
        await anext(stream)
        return stream

    with make(Endless()) as llm:
        stream = asyncio.run(main(llm))
        one(llm.generate("Twice", max_tokens=1))
        one(llm.generate("Twice", max_tokens=1))
        assert llm.engine.stats().active == 0
        del stream


def test_an_async_stream_that_never_began(llm: LLM) -> None:
    stream = llm.astream("Once")
    asyncio.run(stream.aclose())
    assert stream.completion.tokens == []
    del stream


def test_errors_of_the_model_reach_who_asked() -> None:
    toy = Toy(vocab=len(TOKENS))
    with make(toy) as llm:
        for ask in (llm.generate, lambda prompt: list(llm.stream(prompt)), lambda prompt: llm.score([1, 2])):
            toy.errors.append(RuntimeError("no luck"))
            with pytest.raises(FewbitError, match="the model failed: RuntimeError: no luck"):
                ask("Once")
        one(llm.generate("Once", max_tokens=1))


def test_ctrl_c_ends_the_answer_and_not_the_model() -> None:
    program = """
import os, signal, threading
from tests.test_llm import Endless, make
llm = make(Endless())
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    llm.generate("Once", max_tokens=None)
except KeyboardInterrupt:
    llm.generate("Twice", max_tokens=1)
    print(llm.engine.stats().active)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[1],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_a_closed_model() -> None:
    llm = make(Endless())
    stream = llm.stream("Once", max_tokens=None, **WARM)
    next(stream)
    llm.close()
    with pytest.raises(FewbitError, match="the model was closed before the answer was complete"):
        list(stream)
    assert stream.completion.finish_reason == "error"
    with pytest.raises(FewbitError, match="the model was closed; it takes no more requests"):
        llm.generate("Once")


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"prompt": ""}, RequestError, "it has no tokens"),
        ({"prompt": []}, RequestError, "it has no tokens"),
        ({"prompt": [[]]}, RequestError, "it has no tokens"),
        ({"prompt": None}, DtypeError, "a prompt is a str or token ids, or a list of such prompts, not NoneType"),
        ({"prompt": b"Once"}, DtypeError, "a prompt is a str or token ids, or a list of such prompts, not bytes"),
        ({"prompt": {"a": 1}}, DtypeError, "not dict"),
        ({"prompt": [None]}, DtypeError, "a prompt is a str or token ids, not NoneType"),
        ({"prompt": [259]}, RequestError, "there is no token 259: the model has the tokens 0 to 258"),
        ({"prompt": [1, "a"]}, DtypeError, "tokens are integers"),
        ({"prompt": "x" * 200}, RequestError, "a prompt of 200 tokens leaves no room"),
        ({"max_tokens": 0}, RequestError, "max_tokens is at least 1"),
        ({"n": 0}, RequestError, "n is at least 1"),
        ({"seed": -3}, RequestError, "seed is not negative"),
        ({"stop": 7}, DtypeError, "stop is a str or a list of them, not int"),
        ({"stop": ["a", 7]}, DtypeError, "stop strings are str and not empty, 7 was given"),
        ({"stop": ""}, DtypeError, "stop strings are str and not empty, '' was given"),
        ({"temperature": -1}, FewbitError, "temperature"),
        ({"temprature": 1}, DtypeError, "there is no option temprature; there are max_tokens, stop, seed, logprobs"),
    ],
)
def test_what_is_refused(llm: LLM, options: dict[str, Any], kind: type[Exception], match: str) -> None:
    options = {"prompt": "Once", **options}
    with pytest.raises(kind, match=match):
        llm.generate(**options)
    with pytest.raises(kind, match=match):
        asyncio.run(llm.agenerate(**options))


@pytest.mark.parametrize("options", [{"prompt": ["a", "b"]}, {"prompt": "a", "n": 2}])
def test_a_stream_gives_one_answer(llm: LLM, options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="a stream gives one answer to one prompt"):
        llm.stream(**options)
    with pytest.raises(RequestError, match="a stream gives one answer to one prompt"):
        llm.astream(**options)


@pytest.mark.parametrize(
    ("messages", "kind", "match"),
    [
        ("hi", DtypeError, "messages are a list of dicts with role and content, not str"),
        ({"role": "user", "content": "hi"}, DtypeError, "messages are a list of dicts"),
        ([], RequestError, "there are no messages"),
        (["hi"], DtypeError, "message 0 is a dict with role and content, not str"),
        ([{"content": "hi"}], RequestError, "message 0 has a role, such as 'user'; its keys are content"),
        ([{"role": 1, "content": "hi"}], RequestError, "message 0 has a role"),
        ([{"role": "user"}], RequestError, "message 0 has no content"),
        ([{"role": "user", "content": 7}], DtypeError, "the content of message 0 is a str or a list of parts, not int"),
    ],
)
def test_messages_that_are_refused(llm: LLM, messages: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        llm.chat(messages)


def test_tools_that_are_refused(llm: LLM) -> None:
    with pytest.raises(DtypeError, match="tools are a list of dicts, number 0 is str"):
        llm.chat([{"role": "user", "content": "hi"}], tools=["a"])  # type: ignore[list-item]


def test_a_model_without_a_chat_template() -> None:
    with LLM.from_parts(Toy(vocab=262), Tokenizer.from_metadata(pieces("▁a", "▁b"))) as llm:
        with pytest.raises(TemplateError, match="the model has no chat template"):
            llm.chat([{"role": "user", "content": "hi"}])
        one(llm.generate("a", max_tokens=1))


def test_options_are_those_of_a_rule_and_five_more() -> None:
    rule = list(Rule.__dataclass_fields__)
    assert list(get_type_hints(Options)) == ["max_tokens", "stop", "seed", "logprobs", *rule, "n"]
    assert read_options({}).rule == Rule()
