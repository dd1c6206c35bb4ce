"""Models that run in the browser: `/local` is their page (`page.py`), and here are plans and, if shared, files.

A page reads a GGUF file's header, or that of a model here, and posts what it says; the answer is the plan that its
WebGPU runs. `--share-models` lets it fetch the files of models that are loaded, by ranges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from ..browser import AdapterLimits, DescribedFile, Description, make_plan
from ..errors import FewbitError
from .bodies import Body, JsonResponse, read
from .errors import ApiError
from .state import client_name, state_of
from .waiting import unless_gone

Size = Annotated[int, Meta(ge=1, le=1 << 53)]


class BrowserLimits(Body):
    """What the browser's GPU can do."""

    binding_bytes: Size = 128 << 20
    buffer_bytes: Size = 256 << 20
    subgroups: bool = False


class LocalPlanRequest(Body):
    """What a browser read of a GGUF file: hyperparameters, (name, type, shape) of tensors, and vectors in base64."""

    metadata: dict[str, Any]
    tensors: Annotated[list[tuple[str, int, list[int]]], Meta(min_length=1)]
    vectors: dict[str, bytes] = msgspec.field(default_factory=dict)
    limits: BrowserLimits = msgspec.field(default_factory=BrowserLimits)
    ctx: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None


class LocalPlan(msgspec.Struct):
    """Shaders, buffers and dispatches of a model, and how its text becomes tokens."""

    kernels: dict[str, Any]
    buffers: list[dict[str, Any]]
    programs: dict[str, Any]
    step: dict[str, Any]
    sampler: dict[str, Any]
    model: dict[str, Any]
    cache: dict[str, int]
    tokenizer: dict[str, Any]


class SharedModel(msgspec.Struct):
    name: str
    size: int  # bytes


class SharedModels(msgspec.Struct):
    models: list[SharedModel]


async def plan(request: Request) -> Response:
    body, state = await read(request, LocalPlanRequest), state_of(request)
    state.check_open()
    nbytes = request.scope.get("fewbit.body_bytes", 0)
    work = state.text.run(client_name(request), nbytes, lambda: _planned(body))
    try:
        return Response(await unless_gone(request, work), media_type="application/json")
    except FewbitError as error:
        raise ApiError(400, str(error), code="invalid_model") from error


def _planned(body: LocalPlanRequest) -> bytes:
    limits = AdapterLimits(body.limits.binding_bytes, body.limits.buffer_bytes, body.limits.subgroups)
    file = DescribedFile(Description(body.metadata, body.tensors, body.vectors))
    return msgspec.json.encode(make_plan(file, limits, body.ctx))


async def models(request: Request) -> Response:
    """The models whose files a page may fetch; none unless they are shared."""
    found = [SharedModel(name, path.stat().st_size) for name, path in _shared(request).items()]
    return JsonResponse(SharedModels(found))


async def file(request: Request) -> Response:
    """A model's file, whole or by ranges."""
    if not state_of(request).settings.share_models:
        raise ApiError(403, "this server does not share the files of its models; see --share-models",
                       code="unsupported_operation")  # fmt: skip
    name = state_of(request).pool.find(request.path_params["model"]).name
    path = _shared(request).get(name)
    if path is None:
        raise ApiError(404, f"the model {name} is not a single GGUF file, or is not loaded", "model", "model_not_found")
    return FileResponse(path, media_type="application/octet-stream")


def _shared(request: Request) -> dict[str, Path]:
    """Files by the names of models: those that are loaded and are one GGUF file."""
    state = state_of(request)
    if not state.settings.share_models:
        return {}
    loaded = {entry.name: entry.backend.facts.path for entry in state.pool.allowed() if entry.backend is not None}
    return {name: path for name, given in loaded.items() if given and _is_one_file(path := Path(given))}


def _is_one_file(path: Path) -> bool:
    return path.is_file() and path.suffix == ".gguf" and "-of-" not in path.stem[-9:]


ROUTES: list[BaseRoute] = [
    Route("/local/plan", plan, methods=["POST"]),
    Route("/local/models", models),
    Route("/local/models/{model:path}", file),
]
