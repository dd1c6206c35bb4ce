"""Models that clients add, load, unload and remove while the server runs, if it was started with `--allow-changes`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..errors import FewbitError
from ..files.hub import builtin, find, named
from .bodies import Body, JsonResponse, NamedModel, read
from .errors import ApiError, ollama_body
from .sse import NDJSON, EventStream, json_line
from .state import state_of


class PullRequest(NamedModel):
    stream: bool = True
    insecure: bool | None = None  # there is no other way than https


class DeleteRequest(NamedModel):
    pass


class ModelRequest(Body):
    model: str


class PullStatus(msgspec.Struct, omit_defaults=True):
    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


class Changed(msgspec.Struct):
    success: bool = True


async def pull(request: Request) -> Response:
    """Fetch a model and serve it from now on, by the name that it was asked for."""
    check_allowed(request)
    body = await read(request, PullRequest)
    name = body.model_name()
    lines = _pulled(request, name, source_of(name))
    if body.stream:
        limits = state_of(request).settings
        return EventStream(lines, ping=None, write_seconds=limits.write_seconds, media_type=NDJSON)
    *_, last = [line async for line in lines]
    error = msgspec.json.decode(last).get("error")
    if error:
        raise ApiError(500, error, "model", "model_failed")
    return Response(last, media_type="application/json")


async def delete(request: Request) -> Response:
    """Unload a model and serve it no more. Its file stays."""
    check_allowed(request)
    body = await read(request, DeleteRequest)
    await state_of(request).pool.remove(body.model_name())
    return Response(status_code=200)


async def load(request: Request) -> Response:
    check_allowed(request)
    body = await read(request, ModelRequest)
    async with state_of(request).pool.use(body.model):
        return JsonResponse(Changed())


async def unload(request: Request) -> Response:
    check_allowed(request)
    body = await read(request, ModelRequest)
    pool = state_of(request).pool
    entry = pool.find(body.model)
    await pool.unload(entry.name)
    if entry.backend is not None:
        raise ApiError(409, f"the model {entry.name} is in use or pinned, so it stays loaded", "model", "model_in_use")
    return JsonResponse(Changed())


ROUTES: list[BaseRoute] = [
    Route("/api/pull", pull, methods=["POST"]),
    Route("/api/delete", delete, methods=["DELETE"]),
    Route("/v1/models/load", load, methods=["POST"]),
    Route("/v1/models/unload", unload, methods=["POST"]),
]


def source_of(name: str) -> str:
    """What `LLM` takes for a model that a client names: a known name or a repository, never a path or a URL.

    >>> source_of("hf.co/org/repo:Q4_K_M"), source_of("hf:org/repo")
    ('hf:org/repo:Q4_K_M', 'hf:org/repo')
    """
    for begin in ("hf.co/", "huggingface.co/", "hf:"):
        if name.startswith(begin):
            return f"hf:{name.removeprefix(begin).removesuffix(':latest')}"
    short = name.removesuffix(":latest")
    if short in builtin() or short in named():
        return short
    known = ", ".join([*builtin(), *named()])
    raise ApiError(404, f"{name[:100]!r} cannot be pulled; name a repository, hf.co/org/repo, or one of {known}",
                   "model", "model_not_found")  # fmt: skip


def check_allowed(request: Request) -> None:
    """Refuse changes where the server was not started for them."""
    settings = state_of(request).settings
    if not settings.allow_changes:
        what = request.url.path.rpartition("/")[2]
        raise ApiError(400, f"{what} is not supported: this server has the models that it was started with; "
                            "`fewbit serve --allow-changes` lets clients change them", code="unsupported_operation",
                       )  # fmt: skip
    if not settings.is_loopback and not settings.api_keys:
        raise ApiError(403, "models can be changed from this machine only, or with an API key; see --api-key-file",
                       code="forbidden")  # fmt: skip


async def _pulled(request: Request, name: str, source: str) -> AsyncGenerator[bytes, None]:
    """Lines that tell how far it is."""
    pool, loop = state_of(request).pool, asyncio.get_running_loop()
    progress: asyncio.Queue[PullStatus | None] = asyncio.Queue()

    def report(what: str, done: int, total: int | None) -> None:
        status = PullStatus(f"pulling {what}", what, total or 0, done)
        loop.call_soon_threadsafe(progress.put_nowait, status)

    yield json_line(PullStatus("pulling manifest"))
    fetching = asyncio.ensure_future(asyncio.to_thread(partial(find, source, progress=report)))
    fetching.add_done_callback(lambda _: progress.put_nowait(None))
    while (status := await progress.get()) is not None:
        yield json_line(status)
    try:
        await fetching
        pool.add(name.removesuffix(":latest"), source)
        yield json_line(PullStatus("success"))
    except (FewbitError, OSError) as error:
        yield json_line(ollama_body(ApiError(500, str(error))))
