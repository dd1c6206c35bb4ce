"""`/v1/batches`, as OpenAI's clients call it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .batch.batches import Batches
from .batch.records import BatchObject
from .bodies import Body, JsonResponse, read
from .openai_files import files_of
from .openai_responses_store import owner_of
from .paging import page_of
from .state import state_of

Label = Annotated[str, Meta(max_length=512)]


class BatchCreateRequest(Body):
    """The endpoint of all requests in a file that was uploaded."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    completion_window: Literal["24h"] = "24h"
    metadata: Annotated[dict[Annotated[str, Meta(max_length=64)], Label], Meta(max_length=16)] | None = None


class BatchList(msgspec.Struct):
    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


def batches_of(request: Request) -> Batches:
    """The batches of a server that has them."""
    files_of(request)
    batches = state_of(request).batches
    assert batches is not None
    return batches


async def create_batch(request: Request) -> Response:
    batches = batches_of(request)
    body = await read(request, BatchCreateRequest)
    state_of(request).check_open()
    return JsonResponse(batches.create(owner_of(request), body.endpoint, body.input_file_id, body.metadata))


async def get_batch(request: Request) -> Response:
    return JsonResponse(batches_of(request).get(request.path_params["batch_id"], owner_of(request)))


async def list_batches(request: Request) -> Response:
    found = batches_of(request).owned_by(owner_of(request))
    page, has_more = page_of(request.query_params, found, lambda batch: batch.id)
    ids = [one.id for one in page]
    return JsonResponse(BatchList(page, has_more, ids[0] if ids else None, ids[-1] if ids else None))


async def cancel_batch(request: Request) -> Response:
    return JsonResponse(batches_of(request).cancel(request.path_params["batch_id"], owner_of(request)))


ROUTES: list[BaseRoute] = [
    Route("/v1/batches", create_batch, methods=["POST"]),
    Route("/v1/batches", list_batches),
    Route("/v1/batches/{batch_id}", get_batch),
    Route("/v1/batches/{batch_id}/cancel", cancel_batch, methods=["POST"]),
]
