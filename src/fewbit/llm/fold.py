"""Tokens of the engine become text: one fold for each output, in the thread of the caller."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ..engine.request import Delta, Generation
from ..errors import RequestError
from ..text.stream import StopStrings, TextStream
from ..text.tokenizer import Tokenizer
from .callers import raise_error
from .completion import Completion, TokenLogprob
from .logprobs import scored_tokens, token_logprob
from .replies import CallDelta, ReplyDelta, ReplyFold, ReplyPlan
from .structure import OutputStructure


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one output. The deltas of an output join to its completion, which comes with the last.

    Args:
        index: Number of the output: the `n` of the first prompt, those of the second, and so on.
        text: The new text.
        tokens: Its tokens.
        logprobs: One for each of `tokens`, or None if they were not requested.
        completion: The whole output, at its end.
        stop_string: The stop string that ended it, if one did.
        reasoning: The new text of the model's thoughts, in a conversation.
        calls: New parts of tool calls, in a conversation.
    """

    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    completion: Completion | None = None
    stop_string: str | None = None
    reasoning: str = ""
    calls: Sequence[CallDelta] = ()


class TextFold:
    """Folds the deltas of a request into text: whole characters, up to a stop string.

    Args:
        tokenizer: Decodes the tokens.
        request: The request.
        index: Number of the output, as in `TextDelta`.
        n: Number of outputs for each prompt.
        stops: Stop strings.
        prompt_only: The prompt is computed, and the one token that the engine samples is dropped.
        structure: What the text must look like; see `check`.
        visible_tokens: Control tokens that are part of the text.
        reply: How the text is read in a conversation; None: it is plain text.
        dropped_messages: Of a conversation, that were left out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: Generation,
        index: int = 0,
        n: int = 1,
        stops: Sequence[str] = (),
        prompt_only: bool = False,
        structure: OutputStructure | None = None,
        visible_tokens: frozenset[int] = frozenset(),
        reply: ReplyPlan | None = None,
        dropped_messages: int = 0,
    ) -> None:
        self._dropped_messages = dropped_messages
        self.request, self.index, self.structure = request, index, structure
        self.finish_reason: str | None = None
        self._parsed: Any = None
        self._error: str | None = None
        self._tokenizer, self._n, self._prompt_only = tokenizer, n, prompt_only
        _, starts = tokenizer.decode_next(request.tokens[-1], False, True)
        visible = visible_tokens if reply is None else visible_tokens | reply.visible
        self._decoder = TextStream(tokenizer, continues=not starts, visible=visible)
        self._reply = None if reply is None else ReplyFold(reply)
        self._stops = StopStrings(stops) if stops else None
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None if request.num_logprobs is None else []
        self._ends = [0]  # characters of the first i tokens
        self._visible_chars = 0  # those after them may be the start of a stop string
        self._is_whole = False  # all text of all tokens is visible
        self._finish_time = 0.0

    @property
    def has_stops(self) -> bool:
        """Whether text can end the output."""
        return self._stops is not None

    def take(self, delta: Delta) -> TextDelta:
        """The text that a delta adds. An error of the request is raised."""
        first = self._num_visible
        text = "".join(map(self._feed, () if self._prompt_only else delta.tokens))
        if delta.finish is not None and self.finish_reason is None:
            text += self._finish(delta.finish)
        tokens = self._tokens[first : self._num_visible]
        logprobs = self._add_logprobs(first, tokens)
        found = ReplyDelta(text) if self._reply is None else self._reply.take(text, self.finish_reason is not None)
        completion = self.completion() if self.finish_reason is not None else None
        return TextDelta(
            self.index, found.text, tokens, logprobs, completion, self._stop_string, found.reasoning, found.calls
        )

    def end(self, reason: str) -> None:
        """End the output, unless it is complete."""
        if self.finish_reason is None:
            self.finish_reason, self._finish_time = reason, perf_counter()

    def check(self) -> Completion:
        """The output, read as its structure says if it is complete. It may take a while."""
        if self.structure is not None and self.finish_reason == "stop":
            try:
                self._parsed = self.structure.parse("".join(self._texts) if self._reply is None else self._reply.text)
            except RequestError as error:
                self.finish_reason, self._error = "invalid", str(error)
        return self.completion()

    def close(self) -> None:
        """End an output that nobody reads any more."""
        self.end("cancelled")
        if self._reply is not None:
            self._reply.take("", True)

    def completion(self) -> Completion:
        """The output as it stands."""
        request, count = self.request, self._num_visible
        first_time = request.first_token_time
        reply = self._reply
        return Completion(
            text="".join(self._texts) if reply is None else reply.text,
            tokens=self._tokens[:count],
            finish_reason=self.finish_reason or "cancelled",
            logprobs=None if self._logprobs is None else self._logprobs[:count],
            stop_token=None if self._prompt_only or self._stop_string is not None else request.stop_token,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.cached_tokens,
            draft_tokens=request.draft_tokens,
            accepted_tokens=request.accepted_tokens,
            prefill_seconds=first_time - request.start_time if first_time else 0.0,
            decode_seconds=max(0.0, self._finish_time - first_time) if first_time else 0.0,
            cut_tokens=len(self._tokens) - count,
            reasoning="" if reply is None else reply.reasoning,
            tool_calls=[] if reply is None else reply.calls,
            prompt_index=self.index // self._n,
            index=self.index % self._n,
            prompt_logprobs=self._prompt_logprobs(),
            parsed=self._parsed,
            error=self._error,
            dropped_messages=self._dropped_messages,
            beam_score=request.beam_score,
        )

    @property
    def _num_visible(self) -> int:
        """The fewest tokens that hold the visible text: none whose text is held back or cut off."""
        if self._is_whole or (self._stops is None and self.finish_reason is None):
            return len(self._tokens)
        return min(bisect_left(self._ends, self._visible_chars), len(self._tokens))

    @property
    def _stop_string(self) -> str | None:
        return None if self._stops is None else self._stops.found

    def _feed(self, token: int) -> str:
        if self.finish_reason is not None:  # at a stop string
            return ""
        self._tokens.append(token)
        text = self._decoder.feed(token)
        self._ends.append(self._ends[-1] + len(text))
        return self._add(text)

    def _finish(self, reason: str) -> str:
        if self.request.error is not None:
            self.end(reason)
            raise_error(self.request)
        text = self._add(self._decoder.finish())
        if self._stops is not None:
            text += self._show(self._stops.finish())
        if self.finish_reason is None:
            self.finish_reason = "length" if self._prompt_only and reason == "stop" else reason
            self._finish_time, self._is_whole = self.request.finish_time, True
        return text

    def _add(self, text: str) -> str:
        if self._stops is not None:
            text = self._stops.feed(text)
            if self._stops.found is not None:
                self.end("stop")
        return self._show(text)

    def _show(self, text: str) -> str:
        if text:
            self._texts.append(text)
            self._visible_chars += len(text)
        return text

    def _add_logprobs(self, first: int, tokens: Sequence[int]) -> list[TokenLogprob] | None:
        if self._logprobs is None:
            return None
        values = self.request.logprobs[first : first + len(tokens)]
        logprobs = [token_logprob(self._tokenizer, *pair) for pair in zip(tokens, values, strict=True)]
        self._logprobs += logprobs
        return logprobs

    def _prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        scores = self.request.scores
        return None if scores is None else [None, *scored_tokens(self._tokenizer, self.request.tokens, scores)]
