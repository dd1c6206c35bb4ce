"""Responses that are kept in memory, so that later ones can go on from them: bounded, the oldest go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request

from .errors import ApiError

MAX_RESPONSES = 4096
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """A response, its input, and all items of the conversation up to its end."""

    owner: str  # whose key it was made with: others do not see it
    response: Any
    input_items: Sequence[dict[str, Any]]
    items: Sequence[dict[str, Any]]
    nbytes: int


class Store:
    """Responses by id.

    >>> store = Store(max_responses=1)
    >>> store.add("resp_1", "", {}, [], []); store.add("resp_2", "", {}, [], [])
    >>> store.get("resp_1", "") is None, store.get("resp_2", "").response
    (True, {})
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._found: OrderedDict[str, Stored] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._found)

    def add(
        self,
        name: str,
        owner: str,
        response: Any,
        input_items: Sequence[dict[str, Any]],
        items: Sequence[dict[str, Any]],
    ) -> None:
        """Keep a response. What a conversation shares with those before is counted for each: it outlives them."""
        nbytes = len(msgspec.json.encode(response)) + len(msgspec.json.encode(items))
        self._found[name] = Stored(owner, response, input_items, items, nbytes)
        self.nbytes += nbytes
        while self._found and (len(self._found) > self._max_responses or self.nbytes > self._max_bytes):
            self.remove(next(iter(self._found)))

    def get(self, name: str, owner: str) -> Stored | None:
        found = self._found.get(name)
        if found is None or found.owner != owner:
            return None
        self._found.move_to_end(name)
        return found

    def remove(self, name: str) -> None:
        self.nbytes -= self._found.pop(name).nbytes


def store_of(request: Request) -> Store:
    """The store of an app."""
    state = request.app.state
    if not hasattr(state, "responses"):
        state.responses = Store()
    found: Store = state.responses
    return found


def owner_of(request: Request) -> str:
    return str(getattr(request.state, "key_id", ""))


def find(request: Request, name: str) -> Stored:
    """A response that is kept, by its id in a path."""
    found = store_of(request).get(name, owner_of(request))
    if found is None:
        raise ApiError(404, f"there is no response {name[:100]!r}: it was not stored, or it made room for others",
                       "response_id", "response_not_found")  # fmt: skip
    return found


def previous_items(request: Request, name: str | None) -> Sequence[dict[str, Any]]:
    """What was said up to the end of the response that `previous_response_id` names."""
    if name is None:
        return ()
    found = store_of(request).get(name, owner_of(request))
    if found is None:
        raise ApiError(400, f"there is no response {name[:100]!r} to go on from: it was not stored, or it made room "
                            "for others; send the whole conversation", "previous_response_id",
                       "previous_response_not_found")  # fmt: skip
    return found.items
