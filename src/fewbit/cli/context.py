"""How much of a conversation fits into the context."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import RequestError

Message = dict[str, str]


def fit(
    system: list[Message],
    rest: list[Message],
    dropped: int,
    count: Callable[[list[Message]], int],
    ctx: int,
    max_tokens: int | None,
) -> int:
    """How many of the oldest messages to drop, `dropped` at least, so that there is room for an answer.

    If more must go, half of the context is freed at once: each time costs a whole prefill, since the prompt changes at
    its beginning.

    >>> talk = [{"role": role, "content": "x" * 30} for role in ("user", "assistant", "user", "assistant", "user")]
    >>> def letters(messages): return sum(len(m["content"]) for m in messages)
    >>> fit([], talk, 0, letters, 200, 50), fit([], talk, 0, letters, 160, 50)
    (0, 4)
    """
    room = min(ctx // 4, ctx if max_tokens is None else max_tokens)
    tokens = count([*system, *rest[dropped:]])
    if tokens + room > ctx:
        while tokens > ctx // 2 and (turn := next_turn(rest, dropped)):
            dropped = turn
            tokens = count([*system, *rest[dropped:]])
    if tokens >= ctx:
        raise RequestError(
            f"the message is too long: {tokens} tokens with the system message, and the context has {ctx}; "
            "shorten it, or start again with a larger --ctx"
        )
    return dropped


def next_turn(rest: list[Message], dropped: int) -> int | None:
    """Where the next question begins; None after the last one."""
    users = [i for i, message in enumerate(rest) if message["role"] == "user" and i > dropped]
    return users[0] if users else None
