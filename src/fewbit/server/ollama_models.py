"""Ollama's `/api/tags`, `/api/show`, `/api/ps` and `/api/version`; making models is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..errors import FewbitError
from ..models import open_model
from ..ops.sampling import SamplingParams
from .bodies import JsonResponse, NamedModel, read, utc_date
from .errors import ApiError
from .pool import ServedModel
from .state import state_of

OLLAMA_VERSION = "0.14.0"  # whose API this is: clients compare it with what they need, Codex with 0.13.4
NEVER = "9999-12-31T23:59:59Z"  # it goes when another needs its room, not by the clock


class ShowRequest(NamedModel):
    verbose: bool | None = None  # the answer is the same


class Details(msgspec.Struct):
    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""


class ListedModel(msgspec.Struct):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str  # of the file's name, size and time
    details: Details


class ModelTags(msgspec.Struct):
    models: list[ListedModel]


class RunningModel(ListedModel):
    expires_at: str = NEVER
    size_vram: int = 0
    context_length: int = 0


class RunningModels(msgspec.Struct):
    models: list[RunningModel]


class ShownModel(msgspec.Struct):
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class Version(msgspec.Struct):
    version: str


class About(msgspec.Struct):
    """What a file says of its model."""

    details: Details
    info: dict[str, Any]
    template: str
    size: int


async def tags(request: Request) -> Response:
    entries = state_of(request).pool.allowed()
    return JsonResponse(ModelTags([await asyncio.to_thread(_listed, entry) for entry in entries]))


async def ps(request: Request) -> Response:
    found = []
    for entry in state_of(request).pool.allowed():
        if (backend := entry.backend) is not None:
            listed = await asyncio.to_thread(_listed, entry)
            until = NEVER if entry.expires is None else utc_date(entry.expires)
            found.append(
                RunningModel(**msgspec.structs.asdict(listed), expires_at=until, context_length=backend.facts.ctx)
            )
    return JsonResponse(RunningModels(found))


async def show(request: Request) -> Response:
    name = (await read(request, ShowRequest)).model_name()
    state = state_of(request)
    has_tools = state.settings.tools_without_template == "prompt"
    return JsonResponse(await asyncio.to_thread(_shown, state.pool.find(name), has_tools))


async def version(request: Request) -> Response:
    return JsonResponse(Version(OLLAMA_VERSION))


async def refused(request: Request) -> Response:
    what = request.url.path.removeprefix("/api/").split("/")[0]
    raise ApiError(400, f"{what} is not supported: this server has the models that it was started with; "
                        "name others in `fewbit serve MODEL...`", code="unsupported_operation")  # fmt: skip


ROUTES: list[BaseRoute] = [
    Route("/api/tags", tags),
    Route("/api/ps", ps),
    Route("/api/version", version),
    Route("/api/show", show, methods=["POST"]),
    *(Route(f"/api/{name}", refused, methods=["POST"]) for name in ("push", "create", "copy")),
    Route("/api/blobs/{digest}", refused, methods=["HEAD", "POST"]),
]


def _listed(entry: ServedModel) -> ListedModel:
    about, time = _about(entry), _modified(entry)
    name = entry.name if ":" in entry.name else f"{entry.name}:latest"
    digest = sha256(f"{entry.name} {about.size} {time}".encode()).hexdigest()
    return ListedModel(name, name, time, about.size, digest, about.details)


def _shown(entry: ServedModel, has_tools: bool) -> ShownModel:
    about = _about(entry)
    can = ["embedding"] if any(key.endswith(".pooling_type") for key in about.info) else ["completion"]
    if "completion" in can and (has_tools or "tools" in about.template):
        can.append("tools")
    if entry.backend is not None:
        facts = entry.backend.facts
        can += ["insert"] * facts.can_infill + ["vision"] * facts.sees_images
    return ShownModel(
        modelfile=f"FROM {entry.name}\n",
        parameters="" if entry.backend is None else _parameters(entry.backend.facts.sampling),
        template=about.template,
        details=about.details,
        model_info=about.info,
        capabilities=can,
        modified_at=_modified(entry),
    )


def _parameters(sampling: SamplingParams) -> str:
    given = {
        "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p,
        "min_p": sampling.min_p, "repeat_penalty": sampling.repetition_penalty,
    }  # fmt: skip
    return "\n".join(f"{name} {value:g}" for name, value in given.items())


def _path(entry: ServedModel) -> Path | None:
    """Where the model is on this machine, if that is known without fetching it."""
    path = entry.backend.facts.path if entry.backend is not None else Path(entry.source)
    return path if path is not None and path.exists() else None


def _modified(entry: ServedModel) -> str:
    path = _path(entry)
    return utc_date(entry.created if path is None else path.stat().st_mtime)


def _about(entry: ServedModel) -> About:
    path = _path(entry)
    if path is None:
        return About(Details(), {}, "", 0)
    try:
        return _read(path, path.stat().st_mtime_ns)
    except (FewbitError, OSError):  # it is listed all the same: a request tells what is wrong with it
        return About(Details(), {}, "", 0)


@lru_cache(maxsize=64)
def _read(path: Path, time: int) -> About:
    file = open_model(path)
    try:
        formats: Counter[str] = Counter()
        for one in file.infos.values():
            formats[one.format.name.upper()] += prod(one.shape)
        count = formats.total()
        kind = "safetensors" if path.is_dir() else "gguf"
        level = max(formats, key=lambda name: formats[name], default="")
        details = Details("", kind, file.architecture, [file.architecture], _in_billions(count), level)
        info = {"general.architecture": file.architecture, "general.parameter_count": count}
        return About(
            details, {**info, **_plain(file.architecture, file.config)}, file.template() or "", file.file_bytes
        )
    finally:
        file.close()


def _plain(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters that are one number or word, named as in GGUF files."""
    return {f"{architecture}.{key}": value for key, value in config.items() if isinstance(value, int | float | str)}


def _in_billions(count: int) -> str:
    """
    >>> _in_billions(1_100_048_384), _in_billions(134_515_008), _in_billions(5000)
    ('1.1B', '134.5M', '5.0K')
    """
    for size, letter in ((10**9, "B"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return f"{count / 1000:.1f}K"
