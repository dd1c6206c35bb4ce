"""Images in requests: what all APIs make of theirs, and who may have URLs fetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..llm.images import decode_base64, read_data_url
from .errors import ApiError
from .image_fetch import FetchTime

Plain = dict[str, Any]
RESULT_IS_IMAGE = "The image follows."  # the text of a tool's result that has none


@dataclass(slots=True)
class RequestImage:
    """An image of a request, decoded or fetched when the model reads it. `data` is base64, or a URL."""

    data: str
    is_url: bool = True
    time: FetchTime | None = None  # for fetching it, if that is allowed

    @property
    def is_remote(self) -> bool:
        return self.is_url and self.data[:5].lower() != "data:"

    def read(self, size: int = -1) -> bytes:
        """The bytes of its file."""
        if not self.is_url:
            return decode_base64(self.data)
        if self.is_remote and self.time is not None:
            return self.time.fetch(self.data)
        return read_data_url(self.data)


def image_part(data: Any, at: str, *, is_url: bool = True) -> Plain:
    """An image as `LLM.chat` takes it.

    Args:
        data: Its URL, or base64.
        at: Where it is in the request.
        is_url: Whether it is a URL.
    """
    if not isinstance(data, str) or not data:
        what = "a URL" if is_url else "its data in base64"
        raise ApiError(400, f"{at}: an image needs {what}", at, "invalid_request")
    return {"type": "image", "image": RequestImage(data, is_url)}


def content_of(parts: Iterable[str | Plain]) -> str | list[Any]:
    """Texts and images of a message; texts alone are one text.

    >>> content_of(["a", "b"])
    'a\\nb'
    """
    found = [*parts]
    texts = [part for part in found if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(found) else found


def images_in(messages: Sequence[Mapping[str, Any]] | None) -> Iterator[RequestImage]:
    """The images of messages."""
    for message in messages or ():
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and isinstance(image := part.get("image"), RequestImage):
                yield image


def allow_urls(messages: Sequence[Mapping[str, Any]] | None, is_allowed: bool) -> None:
    """Let the URLs of images be fetched, or refuse them."""
    time = FetchTime() if is_allowed else None
    for image in images_in(messages):
        if image.is_remote and not is_allowed:
            raise ApiError(
                400, "this server fetches no images; send them as data URLs (data:image/png;base64,...), or start it "
                "with --allow-image-urls", "messages", "unsupported_content",
            )  # fmt: skip
        image.time = time
