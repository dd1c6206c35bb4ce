"""What a model writes as items of a response, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..llm import TokenLogprob
from .calls import Call
from .jobs import Finished, OutputDelta
from .openai_responses_types import ResponseRequest, new_id
from .openai_types import chat_logprob
from .runs import Run

Events = Iterator[dict[str, Any]]


class ResponseWriter:
    """Deltas of a model in, items in `output` and events out. The text is one message; calls come after it."""

    def __init__(self, run: Run, body: ResponseRequest) -> None:
        self.output: list[dict[str, Any]] = []
        self.calls: list[Call] = []
        self._parser = run.tool_parser(body.parallel_tool_calls)
        self._texts: list[str] = []
        self._logprobs: list[Any] = []
        self._tells_logprobs = body.num_logprobs is not None

    def write(self, deltas: Sequence[OutputDelta], end: Finished) -> Events:
        for delta in deltas:
            yield from self.feed(delta)
        yield from self.finish(end)

    def feed(self, delta: OutputDelta) -> Events:
        yield from self._text(self._parser.feed(delta.text), delta.logprobs or [])

    def finish(self, end: Finished) -> Events:
        rest, self.calls = self._parser.finish()
        yield from self._text(rest, [])
        if not self.output and not self.calls:
            yield from self._open()
        if self.output:
            yield from self._close("incomplete" if end.reason == "length" and not self.calls else "completed")
        for call in self.calls:
            yield from self._call(call)

    def _text(self, text: str, found: list[TokenLogprob]) -> Events:
        logprobs = [msgspec.to_builtins(chat_logprob(one)) for one in found] if self._tells_logprobs else []
        self._logprobs += logprobs
        if not text:
            return
        if not self.output:
            yield from self._open()
        self._texts.append(text)
        yield {"type": "response.output_text.delta", **self._place(), "delta": text, "logprobs": logprobs}

    def _open(self) -> Events:
        item = {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "in_progress", "content": []}
        self.output.append(item)
        yield {"type": "response.output_item.added", "output_index": 0, "item": dict(item)}
        yield {"type": "response.content_part.added", **self._place(), "part": _part("", [])}

    def _close(self, status: str) -> Events:
        text = "".join(self._texts)
        part = _part(text, self._logprobs)
        yield {"type": "response.output_text.done", **self._place(), "text": text, "logprobs": self._logprobs}
        yield {"type": "response.content_part.done", **self._place(), "part": part}
        self.output[0] = {**self.output[0], "status": status, "content": [part]}
        yield {"type": "response.output_item.done", "output_index": 0, "item": self.output[0]}

    def _call(self, call: Call) -> Events:
        number = len(self.output)
        item = {
            "type": "function_call", "id": new_id("fc"), "call_id": new_id("call"), "name": call.name,
            "arguments": call.arguments, "status": "completed",
        }  # fmt: skip
        place = {"item_id": item["id"], "output_index": number}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": number, "item": begun}
        yield {"type": "response.function_call_arguments.delta", **place, "delta": call.arguments}
        yield {
            "type": "response.function_call_arguments.done", **place, "name": call.name, "arguments": call.arguments
        }  # fmt: skip
        self.output.append(item)
        yield {"type": "response.output_item.done", "output_index": number, "item": item}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.output[0]["id"], "output_index": 0, "content_index": 0}


def _part(text: str, logprobs: list[Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
