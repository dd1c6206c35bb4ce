"""Lines of a batch file, as OpenAI defines them: a request in, its answer out.

Ids and times in answers follow from the line and the job, so that a job that is done again writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ..errors import ApiError, cut, openai_body

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
MAX_LINE_BYTES = 64 << 20
MAX_ID_CHARS = 512
MAX_ERRORS = 100  # of a file, that are reported
BOM = b"\xef\xbb\xbf"


class LineError(Exception):
    """A line that is no request: a word for programs, a sentence, and the field that it is about."""

    def __init__(self, code: str, message: str, param: str | None = None, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param, self.custom_id = code, message, param, custom_id


class BatchLine(msgspec.Struct, forbid_unknown_fields=True):
    """A request."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Streamed(msgspec.Struct):
    stream: bool | None = None


class _Named(msgspec.Struct):
    custom_id: str | None = None


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line of the input that is not blank.

    Args:
        index: Its place among them.
        number: Its place in the file, from 1.
        data: Its bytes; None if there are too many.
    """

    index: int
    number: int
    data: bytes | None


@dataclass(slots=True)
class Scan:
    """What a file holds.

    Args:
        num_lines: Lines that are not blank.
        digest: Hash of all bytes.
        repeated: Lines whose custom_id stands in an earlier line, by index: that line's number.
        errors: The first lines that are no requests, by number.
    """

    num_lines: int = 0
    digest: str = ""
    repeated: dict[int, int] = field(default_factory=dict)
    errors: list[tuple[int, LineError]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Record:
    """The answer to a line, as it stands in the output."""

    index: int
    status: int  # of HTTP; 0: the line was no request
    prompt_tokens: int
    completion_tokens: int
    line: bytes


def read_lines(file: BinaryIO, most: int = MAX_LINE_BYTES) -> Iterator[InputLine]:
    """The lines of a file that are not blank."""
    index = 0
    for number, data in enumerate(_bounded(file, most), 1):
        clean = data if data is None else (data.removeprefix(BOM) if number == 1 else data).strip()
        if clean is None or clean:
            yield InputLine(index, number, clean)
            index += 1


def _bounded(file: BinaryIO, most: int) -> Iterator[bytes | None]:
    """Lines; None in place of one with more bytes."""
    while data := file.readline(most + 1):
        if len(data) <= most or data.endswith(b"\n"):
            yield data
            continue
        while data and not data.endswith(b"\n"):
            data = file.readline(most)
        yield None


def scan(path: Path, endpoint: str | None = None) -> Scan:
    """Read a file once. With `endpoint`, requests for others are errors."""
    found, seen = Scan(), dict[bytes, int]()
    with path.open("rb") as file:
        hashed = _HashedFile(file)
        for line in read_lines(hashed):  # type: ignore[arg-type]
            found.num_lines += 1
            name = _custom_id(line)
            if name is not None:
                key = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).digest()
                if (first := seen.setdefault(key, line.number)) != line.number:
                    found.repeated[line.index] = first
            if len(found.errors) < MAX_ERRORS:
                try:
                    decode_line(line, found.repeated, endpoint)
                except LineError as error:
                    found.errors.append((line.number, error))
        found.digest = hashed.digest()
    return found


class _HashedFile:
    """Hashes what is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, sha256()

    def readline(self, most: int) -> bytes:
        data = self._file.readline(most)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        return self._hash.hexdigest()


def _custom_id(line: InputLine) -> str | None:
    try:
        return msgspec.json.decode(line.data or b"", type=_Named).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_line(line: InputLine, repeated: dict[int, int], endpoint: str | None = None) -> BatchLine:
    """The request of a line, or LineError."""
    if line.data is None:
        raise LineError("line_too_long", f"line {line.number} has more than {MAX_LINE_BYTES} bytes")
    name = _custom_id(line)
    try:
        found = msgspec.json.decode(line.data, type=BatchLine)
        streamed = msgspec.json.decode(found.body, type=_Streamed)
    except msgspec.ValidationError as error:
        message = f"line {line.number} is not a request: {cut(str(error), 300)}"
        raise LineError("invalid_request", message, custom_id=name) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"line {line.number} is not JSON: {cut(str(error), 300)}"
        raise LineError("invalid_json_line", message) from None
    if problem := _problem(found, bool(streamed.stream), endpoint):
        param, code, message = problem
        raise LineError(code, f"line {line.number}: {message}", param, found.custom_id)
    if line.index in repeated:
        message = f"line {line.number}: custom_id {cut(found.custom_id)!r} stands in line {repeated[line.index]} too"
        raise LineError("duplicate_custom_id", message, "custom_id", found.custom_id)
    return found


def _problem(line: BatchLine, is_streamed: bool, endpoint: str | None) -> tuple[str, str, str] | None:
    """The field that is wrong, a code and why."""
    if line.method != "POST":
        return "method", "invalid_method", f"method must be POST, got {cut(line.method)!r}"
    if line.url not in ENDPOINTS:
        return "url", "invalid_url", f"url must be one of {', '.join(ENDPOINTS)}, got {cut(line.url)!r}"
    if endpoint is not None and line.url != endpoint:
        return "url", "mismatched_endpoint", f"url must be {endpoint}, the endpoint of the batch, got {line.url}"
    if not line.custom_id or len(line.custom_id) > MAX_ID_CHARS:
        message = f"custom_id must have 1 to {MAX_ID_CHARS} characters, got {len(line.custom_id)}"
        return "custom_id", "invalid_custom_id", message
    if is_streamed:
        return "body.stream", "invalid_request", "stream must be false in a batch"
    return None


def line_key(line: InputLine) -> str:
    """A text that stands for a line and its place.

    >>> line_key(InputLine(0, 1, b"{}")) == line_key(InputLine(0, 1, b"{}")) != line_key(InputLine(1, 2, b"{}"))
    True
    """
    return blake2b(b"%d:" % line.index + (line.data or b""), digest_size=12).hexdigest()


def answered(line: InputLine, custom_id: str, status: int, body: bytes, created: int) -> Record:
    """The record of a request that a handler answered."""
    key = line_key(line)
    found = msgspec.json.decode(body)
    usage = (found.get("usage") or {}) if status == 200 else {}
    response = {"status_code": status, "request_id": f"req_{key}", "body": fixed(found, key, created)}
    return Record(
        line.index, status, usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0),
        _encode({"id": f"batch_req_{key}", "custom_id": custom_id, "response": response, "error": None}),
    )  # fmt: skip


def refused(line: InputLine, error: LineError) -> Record:
    """The record of a line that is no request."""
    key = line_key(line)
    reason = {"code": error.code, "message": error.message}
    data = {"id": f"batch_req_{key}", "custom_id": error.custom_id, "response": None, "error": reason}
    return Record(line.index, 0, 0, 0, _encode(data))


def unanswered(line: InputLine, custom_id: str, code: str, message: str) -> Record:
    """The record of a request that was not run."""
    return refused(line, LineError(code, message, custom_id=custom_id))


def error_body(error: ApiError) -> bytes:
    return _encode(openai_body(error))


def fixed(body: Any, key: str, created: int) -> Any:
    """An answer with ids and a time that follow from its line, without what depends on other requests.

    >>> fixed({"id": "chatcmpl-81f0", "created": 5, "choices": []}, "k", 7)
    {'id': 'chatcmpl-k', 'created': 7, 'choices': []}
    """
    if not isinstance(body, dict) or "choices" not in body:
        return body
    body.get("usage", {}).pop("prompt_tokens_details", None)  # how much of a prompt was cached
    kind = str(body["id"]).partition("-")[0]
    for choice in body["choices"]:
        for number, call in enumerate(choice.get("message", {}).get("tool_calls", ())):
            name = blake2b(f"{key}:{choice['index']}:{number}".encode(), digest_size=12).hexdigest()
            call["id"] = f"call_{name}"
    return {**body, "id": f"{kind}-{key}", "created": created}


def _encode(data: Any) -> bytes:
    return msgspec.json.encode(data)
