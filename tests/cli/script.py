"""A model that says what a script says, and a screen whose user types from a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from fewbit.errors import FewbitError


@dataclass
class Said:
    """A Completion, as far as a conversation looks at it."""

    tokens: list[int]
    prompt_tokens: int = 7
    cached_tokens: int = 3
    draft_tokens: int = 0
    finish_reason: str = "stop"
    prefill_tokens_per_second: float = 100.0
    decode_tokens_per_second: float = 10.0


class ScriptedStream:
    """One answer; an exception among its texts is raised there."""

    def __init__(self, texts: list[str | BaseException], finish_reason: str) -> None:
        self._texts = texts
        self._finish_reason = finish_reason
        self.closed = False
        self.prompt_done = 0.5
        self.completion: Said | None = None

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            if isinstance(text, BaseException):
                raise text
            yield text
        self.completion = Said(list(range(len(self._texts))), finish_reason=self._finish_reason)

    def close(self) -> None:
        self.closed = True


@dataclass
class Script:
    """A model: the answers to the messages, in order."""

    answers: list[list[str | BaseException]] = field(default_factory=list)
    finish_reason: str = "stop"
    ctx: int = 100
    asked: list[tuple[list[dict[str, str]], dict[str, Any]]] = field(default_factory=list)
    given: list[ScriptedStream] = field(default_factory=list)

    def chat(self, messages: list[dict[str, str]], *, stream: bool, **settings: Any) -> ScriptedStream:
        assert stream
        self.asked.append(([dict(m) for m in messages], settings))
        if not self.answers:
            raise FewbitError("the script has come to its end")
        self.given.append(ScriptedStream(self.answers.pop(0), self.finish_reason))
        return self.given[-1]


class Typist:
    """A screen: lines that someone types, exceptions among them for Ctrl-C; then the end."""

    def __init__(self, *lines: str | BaseException, interactive: bool = True, pasted: int = 0) -> None:
        self._lines = list(lines)
        self._pasted = pasted  # lines after the first that come with it
        self.interactive = interactive
        self.out = ""
        self.notes: list[str] = []
        self.progress: list[float] = []
        self.completions: list[Said] = []

    def read(self, prompt: str) -> str:
        if not self._lines:
            raise EOFError
        line = self._lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    def has_more(self) -> bool:
        self._pasted -= 1
        return self._pasted >= 0

    def answering(self) -> AbstractContextManager[None]:
        return nullcontext()

    def confirm(self, question: str) -> bool:
        self.notes.append(question)
        return self.read("") == "y"

    def choose(self, question: str, options: str) -> str:
        self.notes.append(question)
        return self.read("")

    def watched(self, texts: Iterable[str], done: Callable[[], float]) -> Iterator[str]:
        for text in texts:
            self.progress.append(done())
            yield text

    def write(self, text: str) -> None:
        self.out += text

    def answered(self, completion: Said) -> None:
        self.completions.append(completion)

    def end_line(self) -> None:
        self.out += "" if self.out.endswith("\n") else "\n"

    def note(self, text: str) -> None:
        self.notes.append(text)
