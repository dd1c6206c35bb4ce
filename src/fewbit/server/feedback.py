"""`POST /v1/feedback`: what clients say of answers. Only answers that a client asked to keep can be rated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..files.feedback import FeedbackStore, Vote
from .bodies import Body, JsonResponse, read
from .errors import ApiError
from .state import state_of

MAX_TEXT = 1 << 20  # characters of a correction
AnswerId = Annotated[str, Meta(min_length=1, max_length=100)]


class FeedbackRequest(Body):
    """A vote, or the text that the answer should have been."""

    id: AnswerId  # of the chat completion
    vote: Literal["good", "bad"] | None = None
    text: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)] | None = None
    index: Annotated[int, Meta(ge=0, le=1024)] | None = None  # of the choice, if there are several


class Rated(msgspec.Struct):
    id: str
    index: int
    vote: Literal["good", "bad", "corrected"]
    object: Literal["feedback"] = "feedback"


class Forgotten(msgspec.Struct):
    id: str
    object: Literal["feedback"] = "feedback"
    deleted: Literal[True] = True


@dataclass(frozen=True)
class AnswerKeeper:
    """Keeps the answers to one request."""

    store: FeedbackStore
    model: str
    messages: Sequence[Mapping[str, Any]]

    def keep(self, name: str, index: int, text: str) -> None:
        self.store.keep(name, index, self.model, [*map(_without_images, self.messages)], text)


def _without_images(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Images are not kept: what is trained reads text."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [part if isinstance(part, str) else "[image]" if "image" in part else part["text"] for part in content]
    return {**message, "content": "\n".join(texts)}


def feedback_store(request: Request) -> FeedbackStore:
    """Where feedback is kept; without it, the request is refused."""
    store = state_of(request).feedback
    if store is None:
        raise ApiError(403, "this server keeps no feedback; it would with --feedback FILE", code="forbidden")
    return store


async def rate(request: Request) -> Response:
    store, body = feedback_store(request), await read(request, FeedbackRequest)
    if (body.vote is None) == (body.text is None):
        raise ApiError(400, "either vote or text is required", "vote", "invalid_request")
    vote: Vote = body.vote or "corrected"
    index = body.index or 0
    if not await asyncio.to_thread(store.rate, body.id, index, vote, body.text):
        raise _unknown(body.id)
    return JsonResponse(Rated(body.id, index, vote))


async def forget(request: Request) -> Response:
    store, name = feedback_store(request), request.path_params["answer_id"]
    if not await asyncio.to_thread(store.forget, name):
        raise _unknown(name)
    return JsonResponse(Forgotten(name))


def _unknown(name: str) -> ApiError:
    message = (
        f"no answer {name[:100]!r} is kept; requests with feedback: true have theirs kept, for a week without a vote"
    )
    return ApiError(404, message, "id", "not_found")


ROUTES = [
    Route("/v1/feedback", rate, methods=["POST"]),
    Route("/v1/feedback/{answer_id}", forget, methods=["DELETE"]),
]
