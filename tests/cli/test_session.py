"""`fewbit chat --session`: conversations that go on in the next run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main
from fewbit.llm import LLM

from .tiny import write_tiny

SHORT = ["--max-tokens", "8", "--temp", "0", "--batch-invariant", "--ctx", "1024"]
LONG = "tell me a story of many words, as long as can be, so that pages of it are full"


def chat(*args: str, stdin: str) -> Result:
    return CliRunner().invoke(main, ["chat", *args], input=stdin)


def answers(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_conversation_goes_on_as_if_it_had_not_ended(tiny: str, tmp_path: Path) -> None:
    session = str(tmp_path / "talk.json")
    whole = answers(chat(tiny, *SHORT, "--json", stdin=f"{LONG}\nand then\nand then\n"))
    first = chat(tiny, *SHORT, "--json", "--session", session, stdin=f"{LONG}\nand then\n")
    assert f"a new session, kept in {session}" in first.stderr
    assert [one["text"] for one in answers(first)] == [one["text"] for one in whole[:2]]
    second = chat(tiny, *SHORT, "--json", "--session", session, stdin="and then\n")
    (last,) = answers(second)
    assert "4 messages" in second.stderr
    assert "tokens of it computed" in second.stderr
    assert last["text"] == whole[2]["text"]
    assert last["cached_tokens"] > 64
    messages = json.loads(Path(session).read_text())["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant"] * 3


def test_without_the_kv_file_the_prompt_is_computed_again(tiny: str, tmp_path: Path) -> None:
    session = tmp_path / "talk.json"
    answers(chat(tiny, *SHORT, "--json", "--session", str(session), stdin=f"{LONG}\n"))
    Path(f"{session}.kv").unlink()
    (last,) = answers(chat(tiny, *SHORT, "--json", "--session", str(session), stdin="more\n"))
    assert last["prompt_tokens"] > 80


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "not a session of fewbit chat"),
        ("[]", "not a session of fewbit chat"),
        ("[" * 100_000, "not a session of fewbit chat"),
        ('{"fewbit_session": 2}', "unsupported version"),
        ('{"fewbit_session": 1, "messages": [{"role": "root", "content": 1}], "dropped": 0}', "damaged"),
        ('{"fewbit_session": 1, "messages": [], "dropped": 5}', "damaged"),
        ('{"fewbit_session": 1, "messages": 3, "dropped": 0}', "damaged"),
        ('{"fewbit_session": 1, "messages": [], "dropped": "x"}', "damaged"),
        ('{"fewbit_session": 1, "messages": [], "dropped": 0, "fingerprint": "x", "model": "other"}', "another model"),
    ],
)
def test_files_that_are_no_sessions(tiny: str, tmp_path: Path, content: str, what: str) -> None:
    session = tmp_path / "talk.json"
    session.write_text(content)
    result = chat(tiny, *SHORT, "--session", str(session), stdin="hi\n")
    assert result.exit_code == 1
    assert what in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 2
    assert session.read_text() == content


def test_kv_that_does_not_fit_is_refused(tiny: str, tmp_path: Path) -> None:
    session = tmp_path / "talk.json"
    answers(chat(tiny, *SHORT, "--json", "--session", str(session), stdin=f"{LONG}\n"))
    other = chat(tiny, *SHORT, "--kv", "q8_0", "--session", str(session), stdin="hi\n")
    assert other.exit_code == 1
    assert "this cache has k = 'q8_0'" in other.stderr or "this cache has k = q8_0" in other.stderr
    assert "remove it, and the conversation is computed again" in other.stderr
    kv = Path(f"{session}.kv")
    data = bytearray(kv.read_bytes())
    data[len(data) // 2] ^= 1
    for damaged in (bytes(data), bytes(data[:100]), b"fewbitKV", b""):
        kv.write_bytes(damaged)
        result = chat(tiny, *SHORT, "--session", str(session), stdin="hi\n")
        assert result.exit_code == 1, damaged[:10]
        assert "remove it" in result.stderr


def test_a_session_of_another_model(tiny: str, tmp_path: Path) -> None:
    session = tmp_path / "talk.json"
    answers(chat(tiny, *SHORT, "--json", "--session", str(session), stdin="hi\n"))
    other = write_tiny(tmp_path / "other.gguf", seed=5)
    result = chat(str(other), *SHORT, "--session", str(session), stdin="hi\n")
    assert result.exit_code == 1
    assert "the session is one with another model, 'tiny', not 'other'" in result.stderr


def test_a_prompt_is_saved_and_loaded(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "prompt.kv"
    with LLM(tiny) as llm:
        assert llm.save_prompt(path, LONG) == 0
        assert not path.exists()
        first = llm.generate(LONG, max_tokens=4, temperature=0)
        saved = llm.save_prompt(path, LONG)
        assert 0 < saved <= first.prompt_tokens
    with LLM(tiny) as llm:
        assert llm.load_prompt(path) == saved
        again = llm.generate(LONG, max_tokens=4, temperature=0)
        assert again.cached_tokens >= saved - 1
        assert again.tokens == first.tokens


def test_old_messages_are_left_out_and_told(tiny: str) -> None:
    talk = [{"role": role, "content": f"{number} {LONG}"} for number in range(4) for role in ("user", "assistant")]
    messages = [{"role": "system", "content": "Be brief."}, *talk, {"role": "user", "content": "and now?"}]
    with LLM(tiny, ctx=512) as llm:
        answer = llm.chat(messages, truncate=True, max_tokens=16)
        assert answer.dropped_messages > 0
        assert answer.dropped_messages % 2 == 0
        kept = [messages[0], *messages[1 + answer.dropped_messages :]]
        assert answer.prompt_tokens == llm.count_tokens(kept)
        earlier = [messages[0], *messages[answer.dropped_messages - 1 :]]
        assert llm.count_tokens(earlier) + 16 > 512
        assert llm.chat(kept, truncate=True, max_tokens=16).dropped_messages == 0
        with llm.chat(messages, truncate=True, max_tokens=16, stream=True) as stream:
            assert "".join(stream)
        assert stream.completion.dropped_messages == answer.dropped_messages
