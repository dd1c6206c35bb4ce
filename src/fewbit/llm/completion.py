"""What a model wrote."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log-probability, and the likeliest tokens in its place.

    Args:
        token: The token id.
        logprob: Its natural log-probability, before bias, penalties and temperature.
        text: Its text, with U+FFFD for bytes that are not a whole character.
        bytes: The bytes that it stands for.
        top: The likeliest tokens in its place, likeliest first.
    """

    token: int
    logprob: float
    text: str
    bytes: bytes
    top: list[TokenLogprob] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON; -inf, which JSON does not know, is None."""
        return {
            "token": self.token,
            "logprob": self.logprob if isfinite(self.logprob) else None,
            "text": self.text,
            "bytes": list(self.bytes),
            "top": [one.to_dict() for one in self.top],
        }


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that a model asks for.

    Args:
        id: An id, which the message with its result refers to.
        name: Name of the tool.
        arguments: Its arguments.
        text: The arguments as JSON text.

    >>> ToolCall("0", "add", {"x": 1}, '{"x": 1}').to_message()
    {'id': '0', 'type': 'function', 'function': {'name': 'add', 'arguments': '{"x": 1}'}}
    """

    id: str
    name: str
    arguments: dict[str, Any]
    text: str

    def to_message(self) -> dict[str, Any]:
        """The call as a message's `tool_calls` holds it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.text}}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Completion:
    """What a model wrote for a prompt. It is printed, formatted, compared and hashed as its text.

    >>> output = Completion("Hello!", [19556, 17], "stop", prompt_tokens=12, prefill_seconds=0.5)
    >>> str(output), "Hell" in output, output == "Hello!", output + " Bye.", f"{output:>8}"
    ('Hello!', True, True, 'Hello! Bye.', '  Hello!')
    >>> output, output.prefill_tokens_per_second
    (Completion('Hello!', 2 tokens, stop), 24.0)

    `len`, `in`, `+` and truth are those of the text, but it is not a `str`: use `text` for the methods of `str`, and
    `text` or `to_dict()` for JSON. Completions with equal text are equal, whatever their tokens and times, so a
    `Counter` of completions counts answers.

    Args:
        text: The text, without the stop string or the token that ended it.
        tokens: The fewest tokens that hold all of `text`. A stop string may begin inside a token: that token is kept as
            the last one, and its text continues past the end of `text`.
        finish_reason: "stop" (a stop token, a stop string or the end of its grammar), "length" or "deadline";
            "invalid" if the text ended but breaks its schema, see `error`; for a stream also "cancelled" or "error".
        logprobs: One for each of `tokens`, or None if they were not requested.
        stop_token: The token that ended the output, if one did. It is not in `tokens`.
        prompt_tokens: Number of tokens in the prompt.
        cached_tokens: How many of them were in the KV cache.
        prefill_seconds: Seconds until the first token.
        decode_seconds: Seconds from the first token to the end.
        draft_tokens: Number of tokens that were guessed and verified; see the option `speculate`.
        accepted_tokens: How many of them were right: each saved a step.
        cut_tokens: Number of tokens sampled after `tokens`: those of the stop string.
        reasoning: Of `LLM.chat`: the model's thoughts, which are not in `text`.
        tool_calls: Of `LLM.chat` with tools: the calls that the model asks for, which are not in `text`.
        prompt_index: Position of the prompt in the list of prompts.
        index: Position among the `n` outputs for the prompt.
        prompt_logprobs: One for each token of the prompt, None for the first; or None if they were not requested.
        parsed: With the options `schema` and `json`, the object that the text describes: plain values, or an instance
            of the type. None if the text is cut off or invalid.
        error: How the text breaks its schema, if the finish reason is "invalid".
        dropped_messages: Of `LLM.chat` with `truncate`: how many of the oldest messages were left out of the prompt.
        beam_score: With `beams`, the sum of the log-probabilities divided by the number of tokens to the power
            `length_penalty`.
        others: With `n` > 1, the outputs 1 to n - 1, in output 0. See `outputs`.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    logprobs: list[TokenLogprob] | None = None
    stop_token: int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    cut_tokens: int = 0
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    prompt_index: int = 0
    index: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None
    parsed: Any = None
    error: str | None = None
    dropped_messages: int = 0
    beam_score: float | None = None
    others: tuple[Completion, ...] = ()

    @property
    def outputs(self) -> list[Completion]:
        """All `n` outputs for the prompt; this one is the first.

        >>> Completion("a", [1], "stop", others=(Completion("b", [2], "stop", index=1),)).outputs
        [Completion('a', 1 token, stop, first of 2), Completion('b', 1 token, stop)]
        """
        return [self, *self.others]

    @property
    def message(self) -> dict[str, Any]:
        """The output as a message of the assistant, to go on with the conversation.

        >>> Completion("Hello!", [1], "stop").message
        {'role': 'assistant', 'content': 'Hello!'}
        """
        found: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        if self.tool_calls:
            found["tool_calls"] = [call.to_message() for call in self.tool_calls]
        return found

    @property
    def generated_tokens(self) -> int:
        """Number of tokens that were sampled, those of the stop string included, the stop token not."""
        return len(self.tokens) + self.cut_tokens

    @property
    def prefill_tokens_per_second(self) -> float:
        """Tokens of the prompt that were computed, per second; 0 if none was."""
        return _rate(self.prompt_tokens - self.cached_tokens, self.prefill_seconds)

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first, per second; 0 if there was none."""
        return _rate(self.generated_tokens - 1, self.decode_seconds)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON; bytes are lists of numbers, `parsed` is what the text says.

        >>> Completion("Hi", [7], "stop").to_dict()["tokens"]
        [7]
        """
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        logprobs = None if self.logprobs is None else [one.to_dict() for one in self.logprobs]
        if self.prompt_logprobs is not None:
            found["prompt_logprobs"] = [one and one.to_dict() for one in self.prompt_logprobs]
        found["tool_calls"] = [asdict(one) for one in self.tool_calls]
        others = [one.to_dict() for one in self.others]
        parsed = None if self.parsed is None else json.loads(self.text)
        return {**found, "tokens": list(self.tokens), "logprobs": logprobs, "parsed": parsed, "others": others}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        tokens = "1 token" if len(self.tokens) == 1 else f"{len(self.tokens)} tokens"
        position = f", first of {len(self.outputs)}" if self.others else ""
        calls = "".join(f", {call.name}({call.text})" for call in self.tool_calls)
        return f"Completion({self.text!r}{calls}, {tokens}, {self.finish_reason}{position})"

    def __format__(self, spec: str) -> str:
        return format(self.text, spec)

    def __len__(self) -> int:
        return len(self.text)

    def __contains__(self, part: str | Completion) -> bool:
        return str(part) in self.text if isinstance(part, Completion) else part in self.text

    def __add__(self, other: str | Completion) -> str:
        return self.text + str(other) if isinstance(other, str | Completion) else NotImplemented

    def __radd__(self, other: str) -> str:
        return other + self.text if isinstance(other, str) else NotImplemented

    def __eq__(self, other: object) -> bool:
        return self.text == str(other) if isinstance(other, str | Completion) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    if not TYPE_CHECKING:  # type checkers know the attributes that there are

        def __getattr__(self, name: str) -> NoReturn:
            hint = f"; use .text.{name}" if hasattr(str, name) else ""
            raise AttributeError(f"a Completion has no attribute {name!r}{hint}", name=name, obj=self)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0
