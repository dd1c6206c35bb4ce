"""A conversation: messages and the model's answers, without a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import FewbitError, RequestError
from .files import read_bytes, write_text
from .images import is_content, with_images

if TYPE_CHECKING:
    from .tool_calls import ToolCaller

ROLES = ("system", "user", "assistant", "tool")

Message = dict[str, Any]


class AnswerStream(Protocol):
    """The text of an answer, streamed."""

    completion: Any  # after the last text
    prompt_done: float  # share of the prompt that has been computed, from 0 to 1

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

    When the context is full, the oldest messages are no longer part of the prompt; they are kept.

    Args:
        llm: The model.
        system: A system message.
        settings: Options of `LLM.chat`, such as temperature, seed and max_tokens.
        count: Called with messages; returns how many tokens they take.
        caller: Makes the calls of tools that the user agrees to.
    """

    def __init__(
        self,
        llm: Chatting,
        system: str | None = None,
        settings: dict[str, Any] | None = None,
        count: Callable[[list[Message]], int] = len,
        caller: ToolCaller | None = None,
    ) -> None:
        self.llm, self.caller = llm, caller
        self.settings = dict(settings or {})
        self.messages: list[Message] = []
        self.last: Any = None  # the last whole Completion
        self.last_prompt: tuple[list[Message], dict[str, Any]] | None = None  # that it answers, and options of it
        self.on_answer: Callable[[Conversation], object] = lambda _: None  # called when there is an answer
        self.images: list[str] = []  # paths of pictures for the next message
        self.dropped = 0  # oldest messages after the system message that are no longer part of the prompt
        self._count = count
        self._stream: AnswerStream | None = None
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
        """Share of the current prompt that has been computed, from 0 to 1."""
        return self._stream.prompt_done if self._stream else 0.0

    def ask(self, text: str) -> Generator[str, None, None]:
        """Stream the answer to a message. If it fails before its first text, the conversation stays as it was."""
        self._retries = 0
        return self._prepared([*self.messages, {"role": "user", "content": with_images(text, self.images)}])

    def retry(self) -> Generator[str, None, None]:
        """Stream another answer to the last message; a fixed seed is incremented."""
        question = self._last_question()
        self._retries += 1
        return self._prepared(self.messages[: question + 1])

    @property
    def calls(self) -> Sequence[Any]:
        """Calls of tools that the last answer asks for and that have no results."""
        has_calls = bool(self.messages) and bool(self.messages[-1].get("tool_calls"))
        return self.last.tool_calls if has_calls and self.last is not None else ()

    def go_on(self, results: list[Message]) -> Generator[str, None, None]:
        """Stream the answer to the results of calls."""
        return self._prepared([*self.messages, *results])

    def undo(self) -> None:
        """Take back the last message and its answer."""
        self.messages = self.messages[: self._last_question()]
        if self.dropped >= len(self.messages) - (self.system is not None):  # all that is left was dropped
            self.dropped = 0

    def reset(self) -> None:
        """Start over; the system message stays."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]
        self.last, self.dropped, self.images = None, 0, []

    def save(self, path: str) -> None:
        """Write the messages to a file. Only a saved conversation is overwritten."""
        if os.path.exists(path):
            read_messages(path)
        write_text(path, json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n")

    def load(self, path: str) -> None:
        """Continue a conversation that `save` wrote."""
        self.messages = read_messages(path)
        self.last, self.dropped = None, 0

    def _last_question(self) -> int:
        for i in reversed(range(len(self.messages))):
            if self.messages[i]["role"] == "user":
                return i
        raise FewbitError("nothing was asked yet")

    def _prepared(self, messages: list[Message]) -> Generator[str, None, None]:
        """Stream an answer. Messages that the context has no room for are dropped now."""
        system, rest = ([], messages) if self.system is None else (messages[:1], messages[1:])
        if self.llm.ctx is not None:
            self.dropped = fit(system, rest, self.dropped, self._count, self.llm.ctx, self.settings.get("max_tokens"))
        return self._answer(messages, [*system, *rest[self.dropped :]])

    def _answer(self, messages: list[Message], prompt: list[Message]) -> Generator[str, None, None]:
        parts: list[str] = []
        finished = False
        try:
            self._stream = stream = self.llm.chat(prompt, stream=True, **self._settings())
            try:
                for text, answer in answer_texts(stream):
                    parts.append(answer)
                    yield text
            finally:
                stream.close()
            self.last, finished = stream.completion, True
            self.last_prompt = prompt, {name: one for name, one in self._settings().items() if name == "tools"}
        finally:  # an answer that was stopped is kept as far as it came
            self._stream = None
            if parts or finished:
                calls = getattr(self.last, "tool_calls", ()) if finished else ()
                made = {"tool_calls": [call.to_message() for call in calls]} if calls else {}
                self.messages = [*messages, {"role": "assistant", "content": "".join(parts), **made}]
                self.images = []
                self.on_answer(self)

    def _settings(self) -> dict[str, Any]:
        seed = self.settings.get("seed")
        tools = {} if self.caller is None else {"tools": self.caller.tools.described}
        return {**self.settings, **tools, **({} if seed is None else {"seed": seed + self._retries})}


def answer_texts(stream: Any) -> Iterator[tuple[str, str]]:
    """The texts of a stream, and what of them is the answer. Reasoning is shown between tags."""
    if not hasattr(stream, "parts"):  # of a server
        yield from ((text, text) for text in stream)
        return
    is_thinking = False
    for part in stream.parts():
        if part.reasoning:
            yield ("" if is_thinking else "<think>\n") + part.reasoning, ""
            is_thinking = True
        if is_thinking and (part.text or part.completion is not None):
            yield "\n</think>\n\n", ""
            is_thinking = False
        if part.text:
            yield part.text, part.text


def read_messages(path: str) -> list[Message]:
    """The messages of a file, checked."""
    content = read_bytes(path)
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        raise FewbitError(f"{path}: not a saved conversation: not JSON") from None
    if not isinstance(data, list) or not all(is_message(entry) for entry in data):
        raise FewbitError(f"{path}: not a saved conversation: expected a list of messages with role and content")
    return data


def is_message(entry: object) -> bool:
    """Whether a value is a message as it is saved."""
    return (
        isinstance(entry, dict)
        and {"role", "content"} <= entry.keys() <= {"role", "content", "tool_calls", "tool_call_id"}
        and entry["role"] in ROLES
        and is_content(entry["content"])
    )


def fit(
    system: list[Message],
    rest: list[Message],
    dropped: int,
    count: Callable[[list[Message]], int],
    ctx: int,
    max_tokens: int | None,
) -> int:
    """How many of the oldest messages to drop, `dropped` at least, so that there is room for an answer.

    If messages must be dropped, half of the context is freed at once: each time, the whole prompt is computed again.

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
    """Index of the next message of the user; None after the last one."""
    users = [i for i, message in enumerate(rest) if message["role"] == "user" and i > dropped]
    return users[0] if users else None
