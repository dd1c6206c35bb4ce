"""Endpoints of llama.cpp's server that its clients and editors call: properties, slots, templates, filling in."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..llm import LLM
from ..text.infill import File, infill_prompt
from .bodies import Body, JsonResponse, read
from .errors import ApiError, openai_body
from .jobs import Finished, Job, OutputDelta, Usage
from .openai_messages import Message, Tool, read_tools, template_messages
from .openai_types import MaxTokens, OutputError, Sampling, max_tokens_of, output_error
from .prompts import ChatInput, chat_prompt
from .runs import Run, begin, held, namespace, rules_of
from .sse import event
from .text_work import check_chars
from .tokens import loaded_model, with_model, work


class Props(msgspec.Struct):
    """What is known of a model that is loaded."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_path: str  # its name: where it is on the machine is not told
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: dict[str, bool]
    build_info: str = "fewbit"


class Slot(msgspec.Struct):
    """A place for a request in the batch."""

    id: int
    n_ctx: int
    is_processing: bool


class ApplyTemplateRequest(Body):
    messages: Annotated[list[Message], Meta(min_length=1)]
    model: str | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class AppliedTemplate(msgspec.Struct):
    prompt: str


class ExtraFile(Body):
    text: str
    filename: str = ""


class InfillRequest(Sampling, kw_only=True):
    """The model writes what is between `input_prefix` and `input_suffix`, beginning with `prompt`."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Meta(max_length=1024)] | None = None
    prompt: str = ""
    n_predict: MaxTokens | None = None

    def job(self, llm: LLM) -> Job:
        files = [File(one.filename, one.text) for one in self.input_extra or ()]
        check_chars(llm, self.input_prefix, self.input_suffix, self.prompt, *(file.text for file in files))
        tokens = infill_prompt(llm.tokenizer, self.input_prefix, self.input_suffix, files=files, middle=self.prompt)
        options = {**self.options(), "max_tokens": max_tokens_of(self.n_predict)}
        return Job(prompts=[tokens], options=options, priority=self.priority or 0, output=self.output())


class Infilled(msgspec.Struct):
    content: str
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    stop_type: Literal["eos", "limit", "word", "invalid"]
    stopping_word: str
    stop: Literal[True] = True
    index: int = 0
    truncated: bool = False
    error: OutputError | msgspec.UnsetType = msgspec.UNSET


async def props(request: Request) -> Response:
    name, backend = loaded_model(request)
    facts = backend.facts
    found = Props(
        default_generation_settings={"n_ctx": facts.max_length, "params": msgspec.to_builtins(facts.sampling)},
        total_slots=facts.max_seqs,
        model_path=name,
        chat_template=facts.chat_template or "",
        bos_token=facts.bos_token or "",
        eos_token=facts.eos_token or "",
        modalities={"vision": False, "audio": False},
    )
    return JsonResponse(found)


async def slots(request: Request) -> Response:
    _, backend = loaded_model(request)
    facts, active = backend.facts, sum(one.active for one in (await backend.counts()).values())
    return JsonResponse([Slot(number, facts.max_length, number < active) for number in range(facts.max_seqs)])


async def apply_template(request: Request) -> Response:
    body = await read(request, ApplyTemplateRequest)
    tools, names = read_tools(body.tools, None, None).shown, body.chat_template_kwargs
    chat = ChatInput(template_messages(body.messages), tools, names, **rules_of(request))
    return JsonResponse(AppliedTemplate(await with_model(request, body.model, _applied, chat)))


async def infill(request: Request) -> Response:
    body = await read(request, InfillRequest)
    async with AsyncExitStack() as stack:
        backend = await held(request, body.model, stack)
        job = await work(request, backend, _job, body)
        job.namespace = namespace(request, body.cache_salt)
        run = await begin(request, body.model, job, is_held=True)
    if body.stream:
        return run.stream(_chunks(run))
    deltas, finished, usage = await run.collect()
    return JsonResponse(_infilled(run, "".join(delta.text for delta in deltas[0]), finished[0], usage))


ROUTES: list[BaseRoute] = [
    Route("/props", props),
    Route("/slots", slots),
    Route("/apply-template", apply_template, methods=["POST"]),
    Route("/infill", infill, methods=["POST"]),
]


def _job(llm: LLM, body: InfillRequest) -> Job:
    return body.job(llm)


def _applied(llm: LLM, chat: ChatInput) -> str:
    check_chars(llm, chat.messages, chat.tools)
    return llm.detokenize(chat_prompt(llm, chat).tokens)


async def _chunks(run: Run) -> AsyncGenerator[bytes, None]:
    end: Finished | None = None
    try:
        async for one in run:
            if isinstance(one, OutputDelta):
                yield event({"index": 0, "content": one.text, "tokens": one.tokens, "stop": False})
            elif isinstance(one, Finished):
                end = one
            elif end is not None:
                yield event(_infilled(run, "", end, one))
    except ApiError as error:  # the status is sent already
        yield event(openai_body(error))


def _infilled(run: Run, text: str, end: Finished, usage: Usage) -> Infilled:
    how: Literal["eos", "limit", "word", "invalid"] = "limit" if end.reason == "length" else "eos"
    if end.stop_string or end.is_invalid:
        how = "invalid" if end.is_invalid else "word"
    return Infilled(
        text, run.model, usage.completion_tokens, usage.prompt_tokens, usage.cached_tokens, how, end.stop_string or "",
        error=output_error(end),
    )  # fmt: skip
