"""A conversation: messages, and what the model says to them. It knows no terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from ..errors import FewbitError
from .context import fit
from .files import read_bytes, write_text

ROLES = ("system", "user", "assistant")

Message = dict[str, str]


class Stream(Protocol):
    """The text of an answer as it comes."""

    completion: Any  # when all text was taken
    prompt_done: float  # how much of the prompt was run, from 0 to 1

    def __iter__(self) -> Iterator[str]: ...

    def close(self) -> None: ...


class Chatting(Protocol):
    """What a conversation needs of a model."""

    @property
    def ctx(self) -> int | None:
        """Tokens of the context; None if that is not known."""

    @property
    def chat(self) -> Callable[..., Any]: ...


class Conversation:
    """Messages, settings, and the model that answers.

    `settings` are options of `LLM.chat`: temperature, seed, max_tokens and others. `count` tells how many tokens some
    messages take. When the context is full the model is not told the oldest messages any more; they are kept.
    """

    def __init__(
        self,
        llm: Chatting,
        system: str | None = None,
        settings: dict[str, Any] | None = None,
        count: Callable[[list[Message]], int] = len,
    ) -> None:
        self.llm = llm
        self.settings = dict(settings or {})
        self.messages: list[Message] = []
        self.last: Any = None  # the last whole Completion
        self.dropped = 0  # messages that the model is not told any more, the oldest after the system message
        self._count = count
        self._stream: Stream | None = None
        self._retries = 0
        if system is not None:
            self.system = system

    @property
    def system(self) -> str | None:
        first = self.messages[0] if self.messages else {"role": ""}
        return first["content"] if first["role"] == "system" else None

    @system.setter
    def system(self, text: str) -> None:
        rest = self.messages if self.system is None else self.messages[1:]
        self.messages = [{"role": "system", "content": text}, *rest]

    @property
    def prompt_done(self) -> float:
        """How much of the prompt was run for the answer that is on its way, from 0 to 1."""
        return self._stream.prompt_done if self._stream else 0.0

    def ask(self, text: str) -> Generator[str, None, None]:
        """Say something; the answer is streamed. If nothing of it comes, all is as it was before."""
        self._retries = 0
        return self._prepared([*self.messages, {"role": "user", "content": text}])

    def retry(self) -> Generator[str, None, None]:
        """Another answer to the last message; with a fixed seed one from the next seed."""
        question = self._last_question()
        self._retries += 1
        return self._prepared(self.messages[: question + 1])

    def undo(self) -> None:
        """Take back the last message and its answer."""
        self.messages = self.messages[: self._last_question()]
        if self.dropped >= len(self.messages) - (self.system is not None):  # nothing is left that was told
            self.dropped = 0

    def reset(self) -> None:
        """Begin anew; the system message stays."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]
        self.last, self.dropped = None, 0

    def save(self, path: str) -> None:
        """Write the messages to a file. It may hold a conversation already, but nothing else."""
        if os.path.exists(path):
            read_messages(path)
        write_text(path, json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n")

    def load(self, path: str) -> None:
        """Go on with the messages of a file of `save`."""
        self.messages = read_messages(path)
        self.last, self.dropped = None, 0

    def _last_question(self) -> int:
        for i in reversed(range(len(self.messages))):
            if self.messages[i]["role"] == "user":
                return i
        raise FewbitError("nothing was asked yet")

    def _prepared(self, messages: list[Message]) -> Generator[str, None, None]:
        """The answer to come; what the context has no room for is left out now."""
        system, rest = ([], messages) if self.system is None else (messages[:1], messages[1:])
        if self.llm.ctx is not None:
            self.dropped = fit(system, rest, self.dropped, self._count, self.llm.ctx, self.settings.get("max_tokens"))
        return self._answer(messages, [*system, *rest[self.dropped :]])

    def _answer(self, messages: list[Message], told: list[Message]) -> Generator[str, None, None]:
        parts: list[str] = []
        finished = False
        try:
            self._stream = stream = self.llm.chat(told, stream=True, **self._settings())
            try:
                for text in stream:
                    parts.append(text)
                    yield text
            finally:
                stream.close()
            self.last, finished = stream.completion, True
        finally:  # an answer that was stopped counts as far as it came
            self._stream = None
            if parts or finished:
                self.messages = [*messages, {"role": "assistant", "content": "".join(parts)}]

    def _settings(self) -> dict[str, Any]:
        seed = self.settings.get("seed")
        return self.settings if seed is None else {**self.settings, "seed": seed + self._retries}


def read_messages(path: str) -> list[Message]:
    """The messages of a file, checked."""
    content = read_bytes(path)
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        raise FewbitError(f"{path}: not a saved conversation: not JSON") from None
    if not isinstance(data, list) or not all(_is_message(entry) for entry in data):
        raise FewbitError(f"{path}: not a saved conversation: expected a list of messages with role and content")
    return data


def _is_message(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() == {"role", "content"}
        and entry["role"] in ROLES
        and isinstance(entry["content"], str)
    )
