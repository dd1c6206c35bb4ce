"""Training data: conversations and texts as JSON lines, to tokens and which of them are learned."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import FewbitError, FileError, PathError
from ..files.shown import short
from ..text.chat import ChatTemplates
from ..text.tokenizer import Tokenizer
from .model import TokenizedExample

KINDS = '{"messages": [...]}, {"prompt": ..., "completion": ...} or {"text": ...}'
MAX_LINE = 1 << 24  # characters


class ExampleReader:
    """Makes examples of lines, conversations and texts.

    Args:
        tokenizer: The model's tokenizer, which has its chat template.
        max_tokens: Longer examples are cut at their end.
        on_prompt: Whether prompts are learned too.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, on_prompt: bool = False) -> None:
        self.tokenizer, self.max_tokens, self.on_prompt = tokenizer, max_tokens, on_prompt
        self._templates = ChatTemplates(tokenizer)

    def read(self, path: Path) -> list[TokenizedExample]:
        """The examples of a file, all of which must have something to learn."""
        found = []
        for number, line in _lines(path):
            try:
                found.append(self.example(line))
            except FewbitError as error:
                raise FileError(f"{path}, line {number}: {error}") from None
        if not found:
            raise FileError(f"{path}: there are no examples; each line is {KINDS}")
        return found

    def example(self, line: Any) -> TokenizedExample:
        """The example of one line."""
        if isinstance(line, Mapping) and isinstance(line.get("messages"), list):
            return self.conversation(line["messages"])
        if isinstance(line, Mapping) and _are_texts(line, "prompt", "completion"):
            return self.completion(line["prompt"], line["completion"])
        if isinstance(line, Mapping) and _are_texts(line, "text"):
            return self._made([], self._ended(self.tokenizer.encode(line["text"], add_special=True)))
        raise FileError(f"an example is {KINDS}, not {short(json.dumps(line))}")

    def completion(self, prompt: str, completion: str) -> TokenizedExample:
        """A prompt, and what is learned to follow it."""
        return self._made(
            self.tokenizer.encode(prompt, add_special=True), self._ended(self.tokenizer.encode(completion))
        )

    def conversation(self, messages: Sequence[Any]) -> TokenizedExample:
        """A conversation by the model's template; what the assistant says is learned."""
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise FileError(f"a message is an object with role and content, not {short(json.dumps(message))}")
        tokens = self._encode(messages, False)
        learned = [self.on_prompt] * len(tokens)
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if not answers:
            raise FileError("the conversation has no message of the assistant, so there is nothing to learn")
        for place in answers:
            begin, end = self._encode(messages[:place], True), self._encode(messages[: place + 1], False)
            if tokens[: len(end)] == end:  # some templates rewrite earlier answers: these are not learned
                start = _shared(begin, end)
                learned[start : len(end)] = [True] * (len(end) - start)
        return self._checked(tokens, learned)

    def answer(self, messages: Sequence[Mapping[str, Any]], text: str) -> TokenizedExample:
        """A conversation, and an answer to it that is scored: the answer alone is learned."""
        return self._made(self._encode(messages, True), self._ended(self.tokenizer.encode(text)))

    def _encode(self, messages: Sequence[Mapping[str, Any]], is_prompt: bool) -> list[int]:
        prompt = self._templates.prompt(messages, names={"add_generation_prompt": is_prompt})
        return prompt.encode(self.tokenizer)

    def _ended(self, tokens: list[int]) -> list[int]:
        """Tokens with the one that ends an answer, if the model has one."""
        eos = self.tokenizer.eos_id
        return tokens if eos is None or tokens[-1:] == [eos] else [*tokens, eos]

    def _made(self, prompt: list[int], rest: list[int]) -> TokenizedExample:
        return self._checked(prompt + rest, [self.on_prompt] * len(prompt) + [True] * len(rest))

    def _checked(self, tokens: list[int], learned: list[bool]) -> TokenizedExample:
        example = TokenizedExample(tokens[: self.max_tokens], learned[: self.max_tokens])
        if not example.targets:
            cut = f" in its first {self.max_tokens} tokens" if len(tokens) > self.max_tokens else ""
            raise FileError(f"the example has nothing to learn{cut}")
        return example


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their begin.

    >>> _shared([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _are_texts(line: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(line.get(name), str) for name in names)


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), ""), 1):
                if len(line) > MAX_LINE:
                    raise FileError(f"{path}, line {number}: it has more than {MAX_LINE} characters")
                if line.strip():
                    yield number, _parsed(line, path, number)
    except UnicodeDecodeError:
        raise FileError(f"{path}: it is not text in UTF-8") from None
    except OSError as error:
        raise PathError(f"{path}: cannot be read: {error.strerror or error}") from None


def _parsed(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}, line {number}: it is not JSON: {error}") from None
