"""The calls of vLLM that load and unload LoRA adapters; requests name them as models, `base:adapter`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ..errors import FewbitError, RequestError
from .bodies import Body, read
from .changes import check_allowed
from .errors import ApiError
from .state import state_of


class LoadAdapterRequest(Body):
    lora_name: str
    lora_path: str
    model: str | None = None  # the base; None: the first
    load_inplace: bool = False  # replace one of this name


class UnloadAdapterRequest(Body):
    lora_name: str
    model: str | None = None
    lora_int_id: int | None = None  # vLLM's number, which means nothing here


async def load_adapter(request: Request) -> Response:
    """Load an adapter from a path of this machine."""
    check_allowed(request)
    body = await read(request, LoadAdapterRequest)
    async with state_of(request).pool.use(body.model) as backend:
        await _changed(backend.load_adapter(body.lora_name, body.lora_path, body.load_inplace))
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(request: Request) -> Response:
    """Forget an adapter; requests that use it end with it."""
    check_allowed(request)
    body = await read(request, UnloadAdapterRequest)
    async with state_of(request).pool.use(body.model) as backend:
        if body.lora_name not in backend.adapters:
            raise ApiError(404, f"there is no adapter {body.lora_name[:100]!r}", "lora_name", "model_not_found")
        await _changed(backend.unload_adapter(body.lora_name))
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


async def _changed(change: Any) -> None:
    try:
        await change
    except RequestError as error:
        raise ApiError(400, str(error), "lora_name", "invalid_adapter") from None
    except (FewbitError, OSError) as error:
        raise ApiError(400, f"the adapter could not be loaded: {error}", "lora_path", "invalid_adapter") from None


ROUTES: list[BaseRoute] = [
    Route("/v1/load_lora_adapter", load_adapter, methods=["POST"]),
    Route("/v1/unload_lora_adapter", unload_adapter, methods=["POST"]),
]
