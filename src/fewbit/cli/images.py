"""Pictures that the user names: parts of messages here, data URLs for a server."""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Sequence
from typing import Any

from ..errors import FewbitError
from .files import read_bytes

_KINDS = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"), (b"BM", "bmp"), (b"RIFF", "webp"))
MAX_BYTES = 64 << 20


def with_images(text: str, paths: Sequence[str]) -> Any:
    """The content of a message: its pictures, then its text.

    >>> with_images("What is it?", ["a.png"])
    [{'type': 'image', 'image': 'a.png'}, {'type': 'text', 'text': 'What is it?'}]
    """
    if not paths:
        return text
    return [*({"type": "image", "image": path} for path in paths), {"type": "text", "text": text}]


def checked_path(path: str) -> str:
    """The whole path of a picture that is there. Terminals put names with spaces in quotes, or escape them."""
    whole = next(filter(os.path.isfile, map(_whole, (path, *_unquoted(path)))), "")
    if not whole:
        raise FewbitError(f"{path}: there is no such file")
    if os.path.getsize(whole) > MAX_BYTES:
        raise FewbitError(f"{path}: a picture may have {MAX_BYTES >> 20} MB")
    return whole


def _whole(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _unquoted(path: str) -> list[str]:
    """
    >>> _unquoted("my\\\\ cat.png"), _unquoted("'my cat.png'"), _unquoted("it's.png")
    (['my cat.png'], ['my cat.png'], [])
    """
    try:
        paths = shlex.split(path)
    except ValueError:  # a quotation without an end
        return []
    return paths if len(paths) == 1 else []


def text_of_content(content: Any) -> str:
    """The text of a message, without its pictures."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def is_content(content: object) -> bool:
    """Whether a value is a content as `with_images` makes it."""
    return isinstance(content, str) or (isinstance(content, list) and bool(content) and all(map(_is_part, content)))


def has_images(messages: Sequence[dict[str, Any]]) -> bool:
    return any(not isinstance(message.get("content"), str | None) for message in messages)


def for_server(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with their pictures in them, as OpenAI's API has it."""
    return [
        message
        if isinstance(message.get("content"), str | None)
        else {**message, "content": [*map(_server_part, message["content"])]}
        for message in messages
    ]


def _is_part(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    key = {"text": "text", "image": "image"}.get(str(part.get("type")), "")
    return part.keys() == {"type", key} and isinstance(part[key], str)


def _server_part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] != "image":
        return part
    data = read_bytes(part["image"])
    kind = next((name for begin, name in _KINDS if data.startswith(begin)), "png")
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64.b64encode(data).decode()}"}}
