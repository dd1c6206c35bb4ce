"""Images in conversations: where a template puts them.

In messages an image is a part `{"type": "image"}`. While a template is rendered, a character that stands nowhere else
stands for each; afterwards the text of each image takes its place. That text is the program's own, so special tokens in
it count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import TemplateError


class ImageMark(NamedTuple):
    """What stands for images while a template is rendered.

    Args:
        char: A character that stands nowhere else.
        placeholder: What templates of the model write for an image.
        num_images: How many images there are.
    """

    char: str
    placeholder: str
    num_images: int

    def find(self, rendered: str) -> str:
        """A rendered prompt with the character for each image."""
        text = rendered if self.char in rendered else rendered.replace(self.placeholder, self.char)
        if text.count(self.char) != self.num_images:
            raise TemplateError(
                f"the chat template writes {text.count(self.char)} images, and the conversation has {self.num_images}"
            )
        return text


def is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image"


def count_images(messages: Sequence[Mapping[str, Any]]) -> int:
    """
    >>> count_images([{"content": "a"}, {"content": [{"type": "image"}, {"type": "text", "text": "b"}]}])
    1
    """
    contents = [message.get("content") for message in messages]
    return sum(is_image(part) for content in contents if isinstance(content, list | tuple) for part in content)


def with_chars(message: Mapping[str, Any], char: str) -> Mapping[str, Any]:
    """A message in which the character stands for each image.

    >>> with_chars({"content": ["What?", {"type": "image"}, {"type": "text", "text": "And"}, "that?"]}, "*")
    {'content': ['What?*And', 'that?']}
    """
    content = message.get("content")
    if not isinstance(content, list | tuple) or not any(map(is_image, content)):
        return message
    found: list[Any] = []
    joins = False  # whether the next text follows an image
    for part in content:
        text = char if is_image(part) else _text(part)
        if text is not None and found and isinstance(found[-1], str) and (is_image(part) or joins):
            found[-1] += text
        else:
            found.append(part if text is None else text)
        joins = is_image(part)
    return {**message, "content": found}


def as_parts(message: Mapping[str, Any], char: str) -> dict[str, Any]:
    """A message whose text has characters for images, as parts.

    >>> as_parts({"content": "a*b"}, "*")["content"]
    [{'type': 'text', 'text': 'a'}, {'type': 'image'}, {'type': 'text', 'text': 'b'}]
    """
    parts: list[dict[str, Any]] = []
    for number, text in enumerate(message["content"].split(char)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": text}] if text else []
    return {**message, "content": parts or [{"type": "text", "text": ""}]}


def _text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) and part.get("type", "text") in ("text", "input_text") else None
