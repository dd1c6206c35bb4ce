"""`POST /api/chat` and `/api/generate`, as Ollama's clients call them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..errors import TooLong
from ..llm import LLM, TokenLogprob
from ..text.infill import infill_prompt
from ..text.reply import ThoughtText
from .anthropic_writer import tool_input
from .bodies import JsonResponse, read, utc_date
from .errors import ApiError, ollama_body, unsupported
from .jobs import Finished, Job, OutputDelta, Usage
from .ollama_types import (
    Asked,
    OllamaAnswer,
    OllamaCalled,
    OllamaCallOut,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaRecord,
    keep_seconds,
    read_tools,
    template_messages,
    with_images,
)
from .openai_types import chat_logprob
from .replies import Call
from .runs import Run, begin, held, namespace
from .sse import NDJSON, json_line
from .state import state_of
from .text_work import check_chars
from .tokens import work
from .tools import Tools


async def chat(request: Request) -> Response:
    body = await read(request, OllamaChatRequest)
    body.check()
    if not body.messages:
        return await _load(request, body)
    messages, tools, names = template_messages(body.messages), read_tools(body.tools), body.template_names
    return await _respond(request, body, _chat_job, messages, tools, names)


async def generate(request: Request) -> Response:
    body = await read(request, OllamaGenerateRequest)
    body.check()
    if not body.prompt:
        return await _load(request, body)
    return await _respond(request, body, job_of, body)


ROUTES: list[BaseRoute] = [
    Route("/api/chat", chat, methods=["POST"]),
    Route("/api/generate", generate, methods=["POST"]),
]


def _chat_job(llm: LLM, messages: list[dict[str, Any]], tools: Tools, names: dict[str, Any] | None) -> Job:
    return Job(messages=messages, tools=tools, template=names)


def job_of(llm: LLM, body: OllamaGenerateRequest) -> Job:
    """What `/api/generate` is asked: by the chat template, unless the prompt is raw or there is none."""
    if body.images and not llm.can_chat:
        raise unsupported("images", f"{llm.model_name} has no chat template")
    if not llm.can_chat or body.raw or body.suffix or body.context:
        return Job(prompts=[prompt_of(body, llm)])
    system = [{"role": "system", "content": body.system}] if body.system else []
    content = with_images(body.prompt, body.images, "request")
    return Job(messages=[*system, {"role": "user", "content": content}], template=body.template_names)


def prompt_of(body: OllamaGenerateRequest, llm: LLM) -> list[int]:
    """Token ids of a prompt that is raw, has a suffix, or follows the tokens of an earlier one."""
    check_chars(llm, body.prompt, body.suffix, body.system)
    if body.suffix:
        return infill_prompt(llm.tokenizer, body.prompt, body.suffix)
    if body.raw:
        return _raw(body.prompt, llm)
    if llm.can_chat:
        system = [{"role": "system", "content": body.system}] if body.system else []
        found = llm.chat_prompt([*system, {"role": "user", "content": body.prompt}], template=body.template_names)
    elif body.system:
        raise unsupported("system", f"{llm.model_name} has no chat template")
    else:
        found = llm.encode_prompt(body.prompt)
    if body.context and found[:1] == [llm.tokenizer.bos_id]:
        found = found[1:]
    return [*(body.context or ()), *found]


def _raw(prompt: str, llm: LLM) -> list[int]:
    """A prompt in which the caller has written the special tokens."""
    most = llm.engine.max_length
    if len(prompt) > most and (least := llm.tokenizer.min_tokens(prompt)) > most:
        raise TooLong(
            f"the prompt is too long: it has at least {least} tokens, and {most} fit", least, most, is_exact=False
        )
    found = llm.tokenize(prompt, add_special=True, parse_special=True)
    return found[1:] if found[:2] == [llm.tokenizer.bos_id] * 2 else found


@dataclass(frozen=True, slots=True)
class RecordWriter:
    """What the records of one answer share."""

    run: Run
    body: Asked
    begun: int
    load_ns: int

    def record(
        self, text: str, thought: str = "", calls: Sequence[Call] = (), logprobs: list[TokenLogprob] | None = None
    ) -> OllamaRecord:
        found = _record(self.run.model, self.body, text)
        if thought and isinstance(found.message, OllamaAnswer):
            found.message.thinking = thought
        elif thought:
            found.thinking = thought
        if calls and isinstance(found.message, OllamaAnswer):
            found.message.tool_calls = [_call(number, call) for number, call in enumerate(calls)]
        if self.body.logprobs and logprobs:
            found.logprobs = [chat_logprob(one) for one in logprobs]
        return found

    def done(self, record: OllamaRecord, end: Finished, usage: Usage) -> OllamaRecord:
        """The last record of an answer, with what it took."""
        completion = end.completion
        record.done, record.done_reason = True, end.reason
        if end.error is not None:
            record.error = end.error
        record.total_duration, record.load_duration = perf_counter_ns() - self.begun, self.load_ns
        record.prompt_eval_count, record.eval_count = usage.prompt_tokens, usage.completion_tokens
        record.prompt_eval_duration = int(completion.prefill_seconds * 1e9)
        record.eval_duration = int(completion.decode_seconds * 1e9)
        if isinstance(self.body, OllamaGenerateRequest) and not self.body.raw:
            last = [] if completion.stop_token is None else [completion.stop_token]
            record.context = [*self.run.started.prompts[0], *completion.tokens, *last]
        return record


async def _respond(request: Request, body: Asked, make: Callable[..., Job], *given: Any) -> Response:
    """Answer a job: `make(llm, *given)`."""
    begun = perf_counter_ns()
    options = body.given().generate()
    async with AsyncExitStack() as stack:
        backend = await held(request, body.model, stack)
        load_ns = perf_counter_ns() - begun
        job = await work(request, backend, make, *given)
        job.truncates, job.max_context = body.truncate is not False, body.given().num_ctx or None
        job.ignored += body.given().ignored(backend.facts.ctx)
        job.options, job.logprobs, job.namespace = options, body.num_logprobs, namespace(request, None)
        job.output = body.output()
        run = await begin(request, body.model, job, is_held=True)
        keep(request, body.model, body.keep_alive)
    answer = RecordWriter(run, body, begun, load_ns)
    if body.stream:
        return run.stream(_lines(answer), media_type=NDJSON)
    return JsonResponse(await _whole(answer))


def keep(request: Request, model: str, keep_alive: float | str | None) -> None:
    """How long a model stays after this request, if it says so."""
    if keep_alive is not None:
        state_of(request).pool.keep(model, keep_seconds(keep_alive))


async def _whole(answer: RecordWriter) -> OllamaRecord:
    deltas, (end,), usage = await answer.run.collect()
    logprobs = [one for delta in deltas[0] for one in delta.logprobs or ()]
    reply = end.reply
    return answer.done(answer.record(reply.text, reply.thought, reply.calls, logprobs), end, usage)


async def _lines(answer: RecordWriter) -> AsyncGenerator[bytes, None]:
    end: Finished | None = None
    try:
        async for one in answer.run:
            if isinstance(one, OutputDelta):
                thought = "".join(event.text for event in one.events if isinstance(event, ThoughtText))
                if one.text or thought or (answer.body.logprobs and one.logprobs):
                    yield json_line(answer.record(one.text, thought, logprobs=one.logprobs))
            elif isinstance(one, Finished):
                end = one
                if end.reply.calls:
                    yield json_line(answer.record("", calls=end.reply.calls))
            elif end is not None:
                yield json_line(answer.done(answer.record(""), end, one))
    except ApiError as error:  # the status is sent already
        yield json_line(ollama_body(error))


async def _load(request: Request, body: Asked) -> Response:
    """No prompt: the model is loaded, or put away with `keep_alive` 0. The answer is one record."""
    pool = state_of(request).pool
    entry = pool.find(body.model)
    if body.unloads:
        await pool.unload(entry.name)
        if entry.backend is not None:
            raise ApiError(400, f"the model {entry.name} is in use or pinned, so it stays loaded", "keep_alive")
    else:
        async with AsyncExitStack() as stack:
            await held(request, body.model, stack)
            keep(request, body.model, body.keep_alive)
    record = _record(entry.name, body, "")
    record.done, record.done_reason = True, "unload" if body.unloads else "load"
    if body.stream:
        return Response(json_line(record), media_type=NDJSON)
    return JsonResponse(record)


def _record(model: str, body: Asked, text: str) -> OllamaRecord:
    found = OllamaRecord(model, utc_date(), False)
    if isinstance(body, OllamaChatRequest):
        found.message = OllamaAnswer(text)
    else:
        found.response = text
    return found


def _call(number: int, call: Call) -> OllamaCallOut:
    function = OllamaCalled(name=call.name, arguments=tool_input(call.arguments), index=number)
    return OllamaCallOut(f"call_{uuid4().hex[:8]}", function)
