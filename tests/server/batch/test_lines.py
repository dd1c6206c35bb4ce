"""Lines of batch files, those of hostile ones too."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.server.batch import lines
from fewbit.server.batch.lines import BatchLine, InputLine, LineError, decode_line, fixed, read_lines, scan

GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def decoded(data: bytes) -> BatchLine:
    return decode_line(InputLine(0, 1, data), {})


@given(st.lists(st.binary(max_size=40)), st.integers(1, 30))
def test_lines_are_those_of_the_file(parts: list[bytes], most: int) -> None:
    data = b"\n".join(parts)
    wanted = [line for line in data.split(b"\n") if len(line) > most or line.strip()]
    found = list(read_lines(BytesIO(data), most))
    assert [line.index for line in found] == list(range(len(found)))
    for line in found:
        whole = data.split(b"\n")[line.number - 1]
        assert line.data is None or line.data == whole.removeprefix(lines.BOM if line.number == 1 else b"").strip()
        assert (line.data is None) == (len(whole) > most)
    assert len(wanted) - 1 <= len(found) <= len(wanted)  # the first may be nothing but a mark


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"custom_id": ""}, "invalid_custom_id"),
        ({"custom_id": "x" * 513}, "invalid_custom_id"),
        ({"custom_id": 5}, "invalid_request"),
        ({"method": "GET"}, "invalid_method"),
        ({"url": "/v1/responses"}, "invalid_url"),
        ({"url": "http://elsewhere/v1/completions"}, "invalid_url"),
        ({"body": []}, "invalid_request"),
        ({"body": {"prompt": "x", "stream": True}}, "invalid_request"),
        ({"other": 1}, "invalid_request"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, Any], code: str) -> None:
    with pytest.raises(LineError, match="line 1") as error:
        decoded(json.dumps({**GOOD, **change}).encode())
    assert error.value.code == code


@settings(max_examples=40)
@given(st.binary(max_size=60) | st.text().map(str.encode) | st.recursive(st.none() | st.text(), st.lists).map(
    lambda value: json.dumps(value).encode()))  # fmt: skip
def test_anything_is_a_request_or_an_error(data: bytes) -> None:
    with pytest.raises(LineError):
        decoded(data)


def test_deep_nesting_is_no_crash() -> None:
    with pytest.raises(LineError):
        decoded(b"[" * 200_000)
    deep = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":' + b"[" * 200_000
    with pytest.raises(LineError):
        decoded(deep)


def test_a_scan_finds_what_is_repeated(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    one, other = json.dumps(GOOD), json.dumps({**GOOD, "custom_id": "b"})
    path.write_text(f"{one}\n\n{other}\n{one}\nnonsense\n")
    found = scan(path, "/v1/completions")
    assert (found.num_lines, found.repeated) == (4, {2: 1})
    assert [(number, error.code) for number, error in found.errors] == [
        (4, "duplicate_custom_id"), (5, "invalid_json_line"),
    ]  # fmt: skip
    assert scan(path, "/v1/embeddings").errors[0][1].code == "mismatched_endpoint"
    assert scan(path).digest == found.digest


def test_ids_follow_from_the_line() -> None:
    call = {"id": "call_random", "type": "function"}
    choice = {"index": 0, "message": {"tool_calls": [call, dict(call)]}}
    usage = {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    body = {"id": "chatcmpl-random", "created": 1, "choices": [choice], "usage": usage}
    found = fixed(body, "key", 7)
    ids = [one["id"] for one in found["choices"][0]["message"]["tool_calls"]]
    assert (found["id"], found["created"], found["usage"]) == ("chatcmpl-key", 7, {"prompt_tokens": 5})
    assert len(set(ids)) == 2
    assert "call_random" not in ids
