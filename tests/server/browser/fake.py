"""A server without a model that says what a test wants, in the same stream as the real one."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fewbit.server import page

MODELS = ["small", "large"]
DEFAULTS = "temperature 0.7\ntop_k 20\ntop_p 0.8\nmin_p 0\nrepeat_penalty 1"


@dataclass
class Fake:
    """What it answers; `bodies` are the requests that came."""

    answers: list[str] = field(default_factory=lambda: ["Hello."])  # the last one is said again and again
    part_chars: int = 7
    part_seconds: float = 0.0
    thoughts: list[str] = field(default_factory=list)  # the next ones, sent apart from their answers
    calls: list[tuple[str, str]] = field(default_factory=list)  # names and arguments, after the next answer
    problem: str = ""  # what is wrong with the next answer
    loaded: list[str] = field(default_factory=lambda: MODELS[:1])
    context: int = 100  # tokens
    embeds: str = ""  # a model that only embeds, listed before the others
    key: str = ""
    error: tuple[int, str] | None = None
    breaks_after: int | None = None  # parts, and then the connection ends
    has_stats: bool = True
    has_show: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    disconnects: int = 0
    url: str = ""

    def app(self) -> Starlette:
        return Starlette(routes=[
            *page.ROUTES,
            Route("/v1/models", self.models),
            Route("/api/show", self.show, methods=["POST"]),
            Route("/stats", self.stats),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ])  # fmt: skip

    def refused(self, request: Request) -> Response | None:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "this server needs an API key")
        return None

    async def models(self, request: Request) -> Response:
        names = [self.embeds, *MODELS] if self.embeds else MODELS
        found = [
            {"id": name, "loaded": name in self.loaded, "max_model_len": self.context if name in self.loaded else None}
            for name in names
        ]
        return self.refused(request) or JSONResponse({"data": found})

    async def show(self, request: Request) -> Response:
        if not self.has_show:
            return _error(404, "there is no POST /api/show")
        name = (await request.json())["model"]
        can = ["embedding"] if name == self.embeds else ["completion", "tools"]
        parameters = DEFAULTS if name in self.loaded else ""
        return self.refused(request) or JSONResponse({"capabilities": can, "parameters": parameters})

    async def stats(self, request: Request) -> Response:
        if not self.has_stats:
            return _error(404, "there is no GET /stats")
        one = {
            "model": MODELS[0], "loaded": True, "running": 3, "waiting": 1, "generated_tokens": int(time.time() * 50),
            "pages_total": 512, "pages_used": 96, "pages_shared": 24, "pages_cached": 200, "prefix_hit_rate": 0.83,
            "draft_tokens": 200, "accepted_tokens": 164,
        }  # fmt: skip
        other = {"model": MODELS[1], "loaded": False}
        return self.refused(request) or JSONResponse({"time": time.time(), "models": [one, other]})

    async def chat(self, request: Request) -> Response:
        if refused := self.refused(request):
            return refused
        body = await request.json()
        self.bodies.append(body)
        if body["model"] not in self.loaded:
            self.loaded = [*self.loaded, body["model"]]
        if self.error is not None:
            return _error(*self.error)
        text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        thought = self.thoughts.pop(0) if self.thoughts else ""
        return StreamingResponse(self.stream(text, thought), media_type="text/event-stream")

    def parts(self, text: str) -> list[str]:
        return [text[at : at + self.part_chars] for at in range(0, len(text), self.part_chars)]

    def call_deltas(self, index: int, name: str, arguments: str) -> list[dict[str, Any]]:
        begun = {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        return [begun, *({"index": index, "function": {"arguments": part}} for part in self.parts(arguments))]

    async def stream(self, text: str, thought: str) -> AsyncIterator[str]:
        parts = self.parts(text)
        try:
            yield ": ping\n\n" + _event(choices=[{"delta": {"role": "assistant", "content": ""}}], usage=None)
            for part in self.parts(thought):
                yield _event(choices=[{"delta": {"reasoning_content": part}, "finish_reason": None}], usage=None)
                await asyncio.sleep(self.part_seconds)
            for number, part in enumerate(parts):
                if number == self.breaks_after:
                    return
                yield _event(choices=[{"delta": {"content": part}, "finish_reason": None}], usage=None)
                await asyncio.sleep(self.part_seconds)
            calls, self.calls = self.calls, []
            for number, (name, arguments) in enumerate(calls):
                for delta in self.call_deltas(number, name, arguments):
                    yield _event(choices=[{"delta": {"tool_calls": [delta]}, "finish_reason": None}], usage=None)
                    await asyncio.sleep(self.part_seconds)
            end: dict[str, Any] = {"delta": {}, "finish_reason": "tool_calls" if calls else "stop"}
            if self.problem:
                end = {"delta": {}, "finish_reason": "invalid", "error": {"message": self.problem}}
            yield _event(choices=[end], usage=None)
            usage: dict[str, Any] = {
                "prompt_tokens": 40,
                "completion_tokens": len(parts),
                "prompt_tokens_details": {"cached_tokens": 32},
            }
            if thought:
                usage["completion_tokens_details"] = {"reasoning_tokens": len(self.parts(thought))}
            yield _event(choices=[], usage=usage)
            yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.disconnects += 1
            raise


def _event(**chunk: Any) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)


@contextmanager
def served(app: Any) -> Iterator[str]:
    """An app on a free port of this machine; gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", ws="none", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
