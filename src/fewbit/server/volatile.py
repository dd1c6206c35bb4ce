"""Lines of system messages that change in every request, and so keep prompts from sharing a prefix.

Agents put them near the start of the prompt: a header for billing, the time to the second, the id of the request.
Nothing after such a line is found in the KV cache again. A line that means nothing to a model is dropped, the others
are moved to the end of the last message, where only the newest tokens follow.

To handle another line: a `VolatileLine` in `VOLATILE_LINES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Message = Mapping[str, Any]

MAX_LINE = 200  # characters; a longer line is part of the text


class VolatileLine(NamedTuple):
    """A line that changes in every request.

    Args:
        name: What the log calls it.
        pattern: Matches the line from its start.
        is_dropped: It means nothing to a model. Otherwise it is moved to the end of the last message.
    """

    name: str
    pattern: re.Pattern[str]
    is_dropped: bool = False


VOLATILE_LINES = (
    VolatileLine("x-anthropic-billing-header", re.compile(r"x-anthropic-billing-header:"), is_dropped=True),
    VolatileLine(
        "request id", re.compile(r"[-*# ]{0,4}(x-)?(request|message|trace|correlation)[-_ ]id: ?\S{6,}$", re.I)
    ),
    VolatileLine(
        "time",
        re.compile(r"[-*# ]{0,4}((it is|the|today|right) ){0,3}(current|now|today|date|time(stamp)?)\b"
                   r".{0,80}\d{1,2}:\d\d:\d\d.{0,40}$", re.I),
    ),
)  # fmt: skip


def without_volatile(messages: Sequence[Message]) -> tuple[Sequence[Message], list[str]]:
    """Messages whose system messages share a prefix with those of other requests, and the names of what was changed.

    >>> talk = [{"role": "system", "content": "Be brief.\\nCurrent time: 12:30:59"}, {"role": "user", "content": "Hi"}]
    >>> without_volatile(talk)  # doctest: +NORMALIZE_WHITESPACE
    ([{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hi\\n\\nCurrent time: 12:30:59'}],
     ['system (time, moved)'])
    """
    last = messages[-1] if messages else {}
    can_move = last.get("role") in ("user", "tool") and _is_text(last)
    found: list[Message | None] = [*messages]
    moved, names = list[str](), dict[str, None]()
    for number, message in enumerate(messages):
        if message.get("role") != "system":
            break
        if _is_text(message):
            kept, taken = _split(message["content"], can_move)
            if taken:
                found[number] = {**message, "content": kept} if kept else None
            moved += [line for line, kind in taken if not kind.is_dropped]
            names.update((f"system ({kind.name}{'' if kind.is_dropped else ', moved'})", None) for _, kind in taken)
    if moved:
        found[-1] = {**last, "content": "\n".join([f"{last['content']}\n", *moved])}
    return [message for message in found if message is not None], [*names]


def _split(text: str, can_move: bool) -> tuple[str, list[tuple[str, VolatileLine]]]:
    """A text without its volatile lines, and these."""
    kept, taken = list[str](), list[tuple[str, VolatileLine]]()
    for line in text.split("\n"):
        kind = _kind(line)
        if kind is not None and (kind.is_dropped or can_move):
            taken.append((line, kind))
        else:
            kept.append(line)
    return "\n".join(kept).strip("\n") if taken else text, taken


def _kind(line: str) -> VolatileLine | None:
    if len(line) > MAX_LINE or ":" not in line:
        return None
    return next((kind for kind in VOLATILE_LINES if kind.pattern.match(line)), None)


def _is_text(message: Message) -> bool:
    return isinstance(message.get("content"), str)
