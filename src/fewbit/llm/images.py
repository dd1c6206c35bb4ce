"""Images in prompts: parts of messages to pictures, their text to tokens, and these to embeddings."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Lock
from typing import Any

import numpy as np

from ..arrays import Ints
from ..encoding import ImageEncoder
from ..engine.embedded import EmbeddedPart, EmbeddedPrompt, EncodedRows, EncoderInput
from ..errors import ImageError, RequestError, TooLong
from ..images import PreparedImage, open_picture, read_source
from ..loading import model_fingerprint
from ..text.tokenizer import Tokenizer

KINDS = ("image", "image_url", "input_image")
MAX_IMAGES = 64  # of a conversation
OPENING = Lock()  # one image of this process is opened at a time: a large one takes hundreds of megabytes
_NO_ENCODER = "the model reads text only: it has no image encoder; mmproj names the file of one"


@dataclass(frozen=True, slots=True, eq=False)
class PromptImage:
    """An image of a conversation, ready to be encoded."""

    prepared: PreparedImage
    digest: bytes

    def without_patches(self) -> PromptImage:
        """The same for prompts that are counted or cut only."""
        return replace(self, prepared=replace(self.prepared, patches=self.prepared.patches[:0].copy()))


class ImagePrompts:
    """Makes embeddings of the images in conversations.

    Args:
        encoder: The image encoder; None: the model reads text only.
        tokenizer: The model's tokenizer.
        max_tokens: What fits into a prompt.
        reach: How far back tokens of an image see in it, where they see later ones; 0: all of it.
    """

    def __init__(self, encoder: ImageEncoder | None, tokenizer: Tokenizer, max_tokens: int, reach: int = 0) -> None:
        self._encoder, self._tokenizer, self._max_tokens, self._reach = encoder, tokenizer, max_tokens, reach
        self.refusal = _NO_ENCODER  # of images, if there is no encoder

    @property
    def placeholder(self) -> str:
        """What chat templates write for an image."""
        return "" if self._encoder is None else self._encoder.model.placeholder

    def take(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Messages whose images are ready to be encoded."""
        count = sum(is_image_part(part) for message in messages for part in _parts(message))
        if not count:
            return [*messages]
        if self._encoder is None:
            raise RequestError(self.refusal)
        if count > MAX_IMAGES:
            raise RequestError(f"a conversation may have {MAX_IMAGES} images, not {count}")
        tokens_left, taken = self._max_tokens, []
        for number, message in reversed([*enumerate(messages)]):
            taken.append(self._taken(message, f"message {number}", tokens_left))
            tokens_left -= sum(self._num_tokens(image) for image in images_of(taken[-1:]))
        return taken[::-1]

    def _taken(self, message: Mapping[str, Any], where: str, tokens_left: int) -> Mapping[str, Any]:
        """A message whose images are opened, the last one first; those before what fits lose their pixels."""
        content = [*_parts(message)]
        places = [place for place, part in enumerate(content) if is_image_part(part)]
        for place in reversed(places):
            image = self._opened(image_source(content[place]), where)
            content[place] = {"type": "image", "image": image if tokens_left > 0 else image.without_patches()}
            tokens_left -= self._num_tokens(image)
        return {**message, "content": content} if places else message

    def _opened(self, source: Any, where: str) -> PromptImage:
        if isinstance(source, PromptImage):
            return source
        assert self._encoder is not None
        try:
            file = read_source(source)  # outside of the lock: it may be fetched
            with OPENING:
                return self._prepared(self._encoder, file)  # when the lock is released, its picture is gone
        except ImageError as error:
            raise ImageError(f"{where}: {error}") from None

    def _prepared(self, encoder: ImageEncoder, source: Any) -> PromptImage:
        picture = open_picture(source)
        return PromptImage(encoder.model.prepare(picture), self._identity + picture.digest)

    def _num_tokens(self, image: PromptImage) -> int:
        return 0 if self._encoder is None else image.prepared.text.count(self._encoder.model.token)

    @cached_property
    def _identity(self) -> bytes:
        """The same image means something else to another encoder."""
        return b"" if self._encoder is None else model_fingerprint(self._encoder.file).encode()

    def embed(self, images: Sequence[PromptImage], tokens: Sequence[int]) -> EmbeddedPrompt | None:
        """The embeddings of a prompt, which has a token for each of their rows. The engine encodes them."""
        if not images or self._encoder is None:
            return None
        if not all(len(image.prepared.patches) for image in images):
            raise TooLong(
                f"the images of this conversation have more tokens than the context of {self._max_tokens} holds",
                max(len(tokens), self._max_tokens + 1), self._max_tokens,
            )  # fmt: skip
        self._encoder.load()  # here, where no step waits for it
        model = self._encoder.model
        runs = [*self._places(images, tokens)]
        parts = []
        for image, places in zip(images, runs, strict=True):
            source, first = EncoderInput(image.digest, partial(self._encoder.begin, image.prepared)), 0
            for start, end in consecutive(places):
                rows, digest = EncodedRows(source, first, end - start), image.digest + str(first).encode()
                parts.append(EmbeddedPart(start, rows, digest, model.sees_all, self._reach))
                first += end - start
        grids = [image.prepared.grid for image in images]
        starts = [places[0] for places in runs]
        axes = grid_axes(len(tokens), starts, grids) if model.has_axes else None
        return EmbeddedPrompt(parts, tokens, axes)

    def _places(self, images: Sequence[PromptImage], tokens: Sequence[int]) -> Iterator[list[int]]:
        """The positions of the rows of each image."""
        assert self._encoder is not None
        text = self._encoder.model.token
        token = self._tokenizer.token_id(text)
        places = [place for place, one in enumerate(tokens) if one == token]
        counts = [*map(self._num_tokens, images)]
        if len(places) != sum(counts):
            raise RequestError(
                f"the prompt has {len(places)} tokens {text}, and the images need {sum(counts)}: the tokenizer does "
                "not fit the image encoder, or a message spells the token"
            )
        first = 0
        for count in counts:
            yield places[first : first + count]
            first += count


def grid_axes(num_tokens: int, starts: Sequence[int], grids: Sequence[tuple[int, int]]) -> Ints:
    """Time, row and column of each token: tokens of an image have the same time, what follows goes on behind its longer
    side.

    >>> grid_axes(7, [1], [(2, 2)]).tolist()
    [[0, 1, 1, 1, 1, 3, 4], [0, 1, 1, 2, 2, 3, 4], [0, 1, 2, 1, 2, 3, 4]]
    """
    parts, at, end = [], 0, 0  # the next position, and the end of the last image
    for start, (rows, columns) in zip(starts, grids, strict=True):
        parts.append(np.broadcast_to(np.arange(at, at + start - end), (3, start - end)))
        at += start - end
        place = np.stack([np.zeros((rows, columns), np.int32), *np.mgrid[:rows, :columns]])
        parts.append(place.reshape(3, -1) + at)
        at, end = at + max(rows, columns), start + rows * columns
    parts.append(np.broadcast_to(np.arange(at, at + num_tokens - end), (3, num_tokens - end)))
    return np.concatenate(parts, axis=1).astype(np.int32)


def consecutive(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of numbers that follow each other.

    >>> list(consecutive([3, 4, 7]))
    [(3, 5), (7, 8)]
    """
    start = 0
    for at in range(1, len(places) + 1):
        if at == len(places) or places[at] != places[at - 1] + 1:
            yield places[start], places[at - 1] + 1
            start = at


def images_of(messages: Sequence[Mapping[str, Any]]) -> list[PromptImage]:
    """The images of messages that were taken, in their order."""
    parts = (part for message in messages for part in _parts(message))
    return [part["image"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("image"), PromptImage)]


def is_image_part(part: Any) -> bool:
    """Whether a part of a content is an image: a dict that says so, or anything that is neither text nor a dict."""
    return part.get("type") in KINDS if isinstance(part, Mapping) else not isinstance(part, str)


def image_source(part: Any) -> Any:
    """What an image is opened from. A URL must hold the image itself: nothing is fetched.

    >>> image_source({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAEC"}})
    b'\\x00\\x01\\x02'
    """
    if not isinstance(part, Mapping):
        return part
    kind = part["type"]
    if kind == "image":
        source = next((part[key] for key in ("image", "path", "data") if part.get(key) is not None), None)
        if source is None:
            raise RequestError('an image is {"type": "image", "image": path, bytes, PIL image or array}')
        return read_data_url(source) if isinstance(source, str) and source.startswith("data:") else source
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str):
        raise RequestError(f'{kind} needs image_url, such as "data:image/png;base64,..."')
    return read_data_url(url)


def read_data_url(url: str) -> bytes:
    """
    >>> read_data_url("https://example.com/a.png")
    Traceback (most recent call last):
        ...
    fewbit.errors.ImageError: an image's URL must hold the image (data:image/png;base64,...), it starts with 'https://exam'
    """
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        begin = url[:12]
        raise ImageError(f"an image's URL must hold the image (data:image/png;base64,...), it starts with {begin!r}")
    if not head.endswith(";base64"):
        raise ImageError("an image's data URL must be in base64: data:image/png;base64,...")
    return decode_base64(data)


def decode_base64(data: str) -> bytes:
    """The bytes of an image in base64; spaces and line ends in it do not matter."""
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"an image is not valid base64: {error}") from None


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list | tuple) else ()
