"""`GET /v1/models` and `/v1/models/{model}`, as OpenAI's clients expect them, or as Anthropic's do."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .bodies import JsonResponse, utc_date
from .pool import ServedModel
from .state import state_of


class Model(msgspec.Struct):
    id: str
    created: int
    max_model_len: int | None  # None: it is not loaded yet
    loaded: bool
    object: Literal["model"] = "model"
    owned_by: str = "fewbit"
    parent: str | msgspec.UnsetType = msgspec.UNSET  # of an adapter: its base


class ModelList(msgspec.Struct):
    data: list[Model]
    object: Literal["list"] = "list"


class AnthropicModel(msgspec.Struct):
    id: str
    display_name: str
    created_at: str
    type: Literal["model"] = "model"


class AnthropicModelList(msgspec.Struct):
    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False


async def list_models(request: Request) -> Response:
    entries = state_of(request).pool.allowed()
    if _is_anthropic(request):
        ends = (entries[0].name, entries[-1].name) if entries else (None, None)
        return JsonResponse(AnthropicModelList([_anthropic_model(entry) for entry in entries], *ends))
    return JsonResponse(ModelList([model for entry in entries for model in _models(entry)]))


async def get_model(request: Request) -> Response:
    entry, adapter = state_of(request).pool.resolve(request.path_params["model"])
    return JsonResponse(_anthropic_model(entry) if _is_anthropic(request) else _model(entry, adapter))


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _anthropic_model(entry: ServedModel) -> AnthropicModel:
    return AnthropicModel(entry.name, entry.name, utc_date(entry.created))


def _models(entry: ServedModel) -> list[Model]:
    """A model, and one for each of its adapters."""
    adapters = () if entry.backend is None else entry.backend.adapters
    return [_model(entry), *(_model(entry, adapter) for adapter in adapters)]


def _model(entry: ServedModel, adapter: str | None = None) -> Model:
    backend = entry.backend
    length = None if backend is None else backend.facts.max_length
    if adapter is None:
        return Model(entry.name, entry.created, length, backend is not None)
    name = f"{entry.name}:{adapter}"
    return Model(name, entry.created, length, backend is not None, parent=entry.name)
