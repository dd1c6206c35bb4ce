"""Pages of lists, as OpenAI's clients ask for them: `limit`, `order` and `after`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from starlette.datastructures import QueryParams

from .errors import ApiError

T = TypeVar("T")


def page_of(
    query: QueryParams, oldest_first: Sequence[T], id_of: Callable[[T], str], usual: int = 20, most: int = 100
) -> tuple[list[T], bool]:
    """A page of a list, the newest first if nothing else is asked for, and whether there are later ones.

    >>> page_of(QueryParams("limit=2&after=d"), ["a", "b", "c", "d"], str)
    (['c', 'b'], True)
    """
    limit, order, after = query.get("limit", str(usual)), query.get("order", "desc"), query.get("after")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= most:
        raise ApiError(400, f"limit must be between 1 and {most}", "limit", "invalid_request")
    if order not in ("asc", "desc"):
        raise ApiError(400, "order must be asc or desc", "order", "invalid_request")
    items = [*oldest_first] if order == "asc" else [*reversed(oldest_first)]
    if after is not None:
        ids = [id_of(item) for item in items]
        if after not in ids:
            raise ApiError(400, f"after: there is no item {after[:100]!r}", "after", "invalid_request")
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit)]
    return page, len(items) > len(page)
