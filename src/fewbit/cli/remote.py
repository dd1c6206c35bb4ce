"""A model on a server, for commands: what `LLM` gives a conversation, over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from time import perf_counter
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ..completion import Completion
from ..errors import ArgumentError, FetchError

DEFAULT_URL = "http://127.0.0.1:8000"
SECONDS = 600  # that a server may say nothing; it sends comments before


class Server:
    """Requests to a server. The key is that of the environment: FEWBIT_API_KEY."""

    def __init__(self, url: str = DEFAULT_URL, key: str | None = None) -> None:
        url = url if "://" in url else f"http://{url}"
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise ArgumentError(f"{url!r} is no address of a server; it looks like {DEFAULT_URL}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._key = os.environ.get("FEWBIT_API_KEY") if key is None else key

    def open(self, path: str, body: Any = None) -> HTTPResponse:
        """A response that is read as it comes."""
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            found: HTTPResponse = urlopen(Request(self.url + path, data, headers), timeout=SECONDS)
        except HTTPError as error:
            raise FetchError(_said(error)) from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise FetchError(f"{self.url} does not answer: {why}; is `fewbit serve` running?") from None
        return found

    def get(self, path: str, body: Any = None) -> Any:
        """JSON."""
        with self.open(path, body) as response:
            try:
                return json.load(response)
            except (ValueError, OSError, HTTPException):
                raise FetchError(f"{self.url}{path} did not answer with JSON; is it a fewbit server?") from None


class RemoteModel:
    """A model of a server, as far as a conversation needs one."""

    def __init__(self, server: Server, name: str | None = None) -> None:
        self._server = server
        models = server.get("/v1/models")["data"]
        found = next((one for one in models if name in (None, one["id"])), None)
        if found is None:
            there = ", ".join(one["id"] for one in models)
            raise ArgumentError(f"{server.url} has no model {name!r}; it has: {there}")
        self.model_name: str = found["id"]
        self.ctx: int = server.get("/tokenize", {"model": self.model_name, "prompt": ""})["max_model_len"]

    def count_tokens(self, messages: list[dict[str, str]]) -> int:
        """How many tokens of the context messages take."""
        found = self._server.get("/tokenize", {"model": self.model_name, "messages": messages})
        return int(found["count"])

    def chat(self, messages: list[dict[str, str]], *, stream: bool = True, **options: Any) -> RemoteStream:
        """An answer as it comes."""
        body = {
            "model": self.model_name, "messages": messages, "stream": True, "return_token_ids": True,
            "stream_options": {"include_usage": True}, **options,
        }  # fmt: skip
        return RemoteStream(self._server, body)


class RemoteStream:
    """The text of an answer as it comes over HTTP; `completion` at its end."""

    def __init__(self, server: Server, body: dict[str, Any]) -> None:
        self._start = perf_counter()
        self._first = 0.0
        self._response = server.open("/v1/chat/completions", body)
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._reason = "cancelled"
        self._usage: dict[str, Any] = {}
        self.prompt_done = 0.0

    def __iter__(self) -> Iterator[str]:
        for found in self._events():
            if "error" in found:
                raise FetchError(found["error"]["message"])
            self._usage = found.get("usage") or self._usage
            for choice in found["choices"]:
                self._reason = choice["finish_reason"] or self._reason
                self._tokens += choice.get("token_ids") or []
                text = choice["delta"].get("content")
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
        )

    def close(self) -> None:
        self._response.close()

    def _events(self) -> Iterator[dict[str, Any]]:
        try:
            for line in self._response:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield json.loads(line.removeprefix(b"data: "))
        except (OSError, HTTPException, ValueError) as error:
            raise FetchError(f"the answer broke off: {error or type(error).__name__}") from None


def _said(error: HTTPError) -> str:
    try:
        found = json.load(error)["error"]
        return str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, KeyError, TypeError, OSError):
        return f"the server answered with status {error.code}"
