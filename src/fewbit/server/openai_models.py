"""`GET /v1/models` and `/v1/models/{model}`."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .bodies import JsonResponse
from .pool import Entry
from .state import state_of


class Model(msgspec.Struct):
    id: str
    created: int
    max_model_len: int | None  # None: it is not loaded yet
    loaded: bool
    object: Literal["model"] = "model"
    owned_by: str = "fewbit"


class ModelList(msgspec.Struct):
    data: list[Model]
    object: Literal["list"] = "list"


async def list_models(request: Request) -> Response:
    return JsonResponse(ModelList([_model(entry) for entry in state_of(request).pool.allowed()]))


async def get_model(request: Request) -> Response:
    return JsonResponse(_model(state_of(request).pool.find(request.path_params["model"])))


def _model(entry: Entry) -> Model:
    llm = entry.llm
    return Model(entry.name, entry.created, None if llm is None else llm.engine.max_length, llm is not None)
