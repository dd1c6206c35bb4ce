"""A model of a running server, over HTTP, in place of an `LLM`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from time import perf_counter
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import click
from click.core import ParameterSource

from ..errors import ArgumentError, FetchError
from ..llm import Completion
from ..llm.completion import ToolCall
from ..load_options import load_options
from .images import for_server

DEFAULT_URL = "http://127.0.0.1:8000"
SECONDS = 600  # without a byte from the server, which sends comments more often


class RemoteServer:
    """Sends requests to a server, with the key in FEWBIT_API_KEY."""

    def __init__(self, url: str = DEFAULT_URL, key: str | None = None) -> None:
        url = url if "://" in url else f"http://{url}"
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise ArgumentError(f"{url!r} is not the address of a server, such as {DEFAULT_URL}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._key = os.environ.get("FEWBIT_API_KEY") if key is None else key

    def open(self, path: str, body: Any = None) -> HTTPResponse:
        """Send a request; the response can be streamed."""
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            found: HTTPResponse = urlopen(Request(self.url + path, data, headers), timeout=SECONDS)
        except HTTPError as error:
            raise FetchError(_error_text(error)) from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise FetchError(f"{self.url} does not answer: {why}; is `fewbit serve` running?") from None
        return found

    def models(self) -> list[str]:
        """The names of its models."""
        try:
            return [str(model["id"]) for model in self.get("/v1/models")["data"]]
        except (KeyError, TypeError):
            raise FetchError(f"{self.url} does not list its models as OpenAI's API does") from None

    def get(self, path: str, body: Any = None) -> Any:
        """The JSON of a response."""
        with self.open(path, body) as response:
            try:
                return json.load(response)
            except (ValueError, OSError, HTTPException):
                raise FetchError(f"{self.url}{path} did not answer with JSON; does it have OpenAI's API?") from None


class RemoteModel:
    """A model of a server with OpenAI's API. The context's size and token ids are known if it reports them."""

    can_chat = True  # else the server answers with an error

    def __init__(self, server: RemoteServer, name: str | None = None) -> None:
        self._server = server
        ids = server.models()
        if not ids or name not in (None, *ids):
            raise ArgumentError(f"{server.url} has no model {name or 'at all'!r}; it has: {', '.join(ids) or 'none'}")
        self.model_name = ids[0] if name is None else name
        self.ctx = self._context()

    def count_tokens(self, messages: list[dict[str, Any]]) -> int:
        """How many tokens messages take."""
        found = self._server.get("/tokenize", {"model": self.model_name, "messages": for_server(messages)})
        return int(found["count"])

    def chat(self, messages: list[dict[str, Any]], *, stream: bool = True, **options: Any) -> RemoteStream:
        """Stream an answer."""
        return self._stream("/v1/chat/completions", {"messages": for_server(messages), **options})

    def stream(self, prompt: str, **options: Any) -> RemoteStream:
        """Stream the continuation of a text."""
        return self._stream("/v1/completions", {"prompt": prompt, **options})

    def _stream(self, path: str, body: dict[str, Any]) -> RemoteStream:
        structure = _response_format(body)
        body = {"model": self.model_name, "stream": True, "stream_options": {"include_usage": True}, **body}
        body |= structure
        own = {"return_token_ids": True} if self.ctx is not None else {}  # other servers may refuse it
        return RemoteStream(self._server, path, body | own)

    def _context(self) -> int | None:
        try:
            found = self._server.get("/tokenize", {"model": self.model_name, "prompt": ""})
            return int(found["max_model_len"])
        except (FetchError, KeyError, TypeError, ValueError):
            return None


@contextmanager
def open_remote(server: RemoteServer, model: str | None) -> Iterator[RemoteModel]:
    """A model of a server, for a command. Options for loading models are refused: the server loads them."""
    context = click.get_current_context()
    names = [option.name for option in load_options() if option.choice.scope != "python"]
    chosen = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if chosen:
        option = f"--{chosen[0].replace('_', '-')}"
        raise click.UsageError(f"{option} is for models that are loaded here; give it to fewbit serve")
    yield RemoteModel(server, model)


def remote_arguments(server: RemoteServer, first: str | None, rest: tuple[str, ...]) -> tuple[str | None, str | None]:
    """A model and a prompt; one argument is a model if the server has one of that name."""
    if len(rest) > 1:
        raise click.UsageError("a prompt of several words needs quotes")
    if first is None or rest:
        return first, rest[0] if rest else None
    return (first, None) if first in server.models() else (None, first)


class RemoteStream:
    """The text of an answer, streamed over HTTP; `completion` at its end."""

    def __init__(self, server: RemoteServer, path: str, body: dict[str, Any]) -> None:
        self._start = perf_counter()
        self._first = 0.0
        self._is_json = "response_format" in body
        self._response = server.open(path, body)
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._reason = "cancelled"
        self._usage: dict[str, Any] = {}
        self.prompt_done = 0.0

    def __iter__(self) -> Iterator[str]:
        for found in self._events():
            if "error" in found:
                raise FetchError(found["error"]["message"])
            self._usage = found.get("usage") or self._usage
            for choice in found.get("choices") or []:
                self._reason = choice.get("finish_reason") or self._reason
                self._tokens += choice.get("token_ids") or []
                text = choice["delta"].get("content") if "delta" in choice else choice.get("text")
                for part in choice.get("delta", {}).get("tool_calls") or []:
                    add_call(self._calls, part)
                if text:
                    self._first, self.prompt_done = self._first or perf_counter(), 1.0
                    self._texts.append(text)
                    yield text

    @property
    def completion(self) -> Completion:
        now, details = perf_counter(), self._usage.get("prompt_tokens_details") or {}
        return Completion(
            "".join(self._texts),
            self._tokens,
            self._reason,
            prompt_tokens=self._usage.get("prompt_tokens", 0),
            cached_tokens=details.get("cached_tokens", 0),
            prefill_seconds=(self._first or now) - self._start,
            decode_seconds=now - (self._first or now),
            tool_calls=[*map(_tool_call, self._calls.values())],
            parsed=_value("".join(self._texts)) if self._is_json and self._reason == "stop" else None,
        )

    def close(self) -> None:
        self._response.close()

    def _events(self) -> Iterator[dict[str, Any]]:
        try:
            for line in self._response:
                if line.startswith(b"data:") and line.removeprefix(b"data:").strip() not in (b"[DONE]", b""):
                    yield json.loads(line.removeprefix(b"data:"))
        except (OSError, HTTPException, ValueError) as error:
            raise FetchError(f"the answer broke off: {error or type(error).__name__}") from None


def add_call(calls: dict[int, dict[str, str]], part: dict[str, Any]) -> None:
    """Add a part of a call, as it is streamed.

    >>> calls = {}
    >>> for text in ('{"x"', ': 1}'): add_call(calls, {"index": 0, "id": "a", "function": {"arguments": text}})
    >>> calls
    {0: {'id': 'a', 'name': '', 'arguments': '{"x": 1}'}}
    """
    call = calls.setdefault(part.get("index") or 0, {"id": "", "name": "", "arguments": ""})
    function = part.get("function") or {}
    call["id"] = part.get("id") or call["id"]
    call["name"] = function.get("name") or call["name"]
    call["arguments"] += function.get("arguments") or ""


def _tool_call(call: dict[str, str]) -> ToolCall:
    arguments = _value(call["arguments"])
    return ToolCall(call["id"], call["name"], arguments if isinstance(arguments, dict) else {}, call["arguments"])


def _response_format(body: dict[str, Any]) -> dict[str, Any]:
    """What the answer must look like, as OpenAI's API has it, in place of the options of `LLM`."""
    schema, is_object = body.pop("schema", None), body.pop("json", False)
    for name in ("regex", "choice", "grammar"):
        if name in body:
            raise ArgumentError(
                f"--{name} is for models that are loaded here; a server takes --schema or --json-object"
            )
    if schema is not None:
        named = {"name": "answer", "schema": json.loads(schema)}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"response_format": {"type": "json_object"}} if is_object else {}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # the server did not keep to it
        return None


def _error_text(error: HTTPError) -> str:
    try:
        found = json.load(error)["error"]
        return str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, KeyError, TypeError, OSError):
        return f"the server answered with status {error.code}"
