"""`POST /v1/completions`: prompts that are continued; with `echo` and `logprobs` also scored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from ..llm import Prompt, TokenLogprob
from .bodies import JsonResponse, read
from .errors import ApiError, openai_body
from .jobs import Finished, Job, OutputDelta
from .openai_types import (
    ChunkWriter,
    MaxTokens,
    OutputError,
    Sampling,
    StopReason,
    UsageInfo,
    error_field,
    finite,
    max_tokens_of,
    output_error,
    stop_reason,
    usage_info,
)
from .runs import Run, begin, namespace
from .sse import DONE, event

DEFAULT_TOKENS = 16  # as OpenAI has it

Token = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Text = Annotated[str, Meta(min_length=1)]
TokenIds = Annotated[list[Token], Meta(min_length=1)]
# Either one prompt, text or token ids, or a list of prompts: what stands in a list is looked at when it is read.
Prompts = Text | Annotated[list[Any], Meta(min_length=1)]


class CompletionRequest(Sampling, kw_only=True):
    """With `suffix` a model that has tokens for it fills in what is between the prompt and the suffix."""

    prompt: Prompts
    max_tokens: MaxTokens | None = None
    n_predict: MaxTokens | None = None  # the same, as llama.cpp calls it
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None

    def job(self) -> Job:
        given = self.n_predict if self.max_tokens is None else self.max_tokens
        return Job(
            prompts=read_prompts(self.prompt),
            suffix=self.suffix or None,
            options={**self.options(), "max_tokens": max_tokens_of(given)},
            default_tokens=None if given == -1 else DEFAULT_TOKENS,
            n=self.n or 1,
            priority=self.priority or 0,
            client=self.user_name,
            logprobs=self.logprobs,
            echo=bool(self.echo),
            output=self.output(),
        )


class CompletionLogprobs(msgspec.Struct):
    """Lists of the same length, one place a token; the first of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    finish_reason: StopReason
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    error: OutputError | msgspec.UnsetType = msgspec.UNSET


class CompletionAnswer(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageInfo
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str = "fewbit"


def read_prompts(prompt: str | list[Any]) -> list[Prompt]:
    """The prompts of a request: one text, token ids, or a list of either.

    >>> read_prompts([1, 2]), read_prompts(["a", "b"])
    ([[1, 2]], ['a', 'b'])
    """
    if isinstance(prompt, str):
        return [prompt]
    for kind in (list[Text], list[TokenIds]):
        try:
            found: list[Prompt] = msgspec.convert(prompt, kind)
            return found
        except msgspec.ValidationError:
            pass
    try:
        return [msgspec.convert(prompt, TokenIds)]
    except msgspec.ValidationError:
        message = "prompt is a text, a list of texts, a list of token ids, or a list of such lists; none may be empty"
        raise ApiError(400, message, "prompt", "invalid_request") from None


async def completions(request: Request) -> Response:
    body = await read(request, CompletionRequest)
    job = body.job()
    job.namespace = namespace(request, body.cache_salt)
    run = await begin(request, body.model, job)
    if body.stream:
        return run.stream(_chunks(run, body))
    deltas, finished, usage = await run.collect()
    if job.logprobs is None and not job.echo:
        choices = _choices(run, body, deltas, finished)
    else:  # many log-probabilities take long
        choices = await asyncio.to_thread(_choices, run, body, deltas, finished)
    return JsonResponse(CompletionAnswer(_new_id(), run.created, run.model, choices, usage_info(usage)))


def _choices(
    run: Run, body: CompletionRequest, deltas: list[list[OutputDelta]], finished: list[Finished]
) -> list[CompletionChoice]:
    return [_choice(run, body, output, end) for output, end in zip(deltas, finished, strict=True)]


def _choice(run: Run, body: CompletionRequest, deltas: list[OutputDelta], end: Finished) -> CompletionChoice:
    text, logprobs = _echoed(run, end.index)
    if logprobs is not None:
        _extend(logprobs, [one for delta in deltas for one in delta.logprobs or []], len(text))
    ids = end.completion.tokens if body.return_token_ids else msgspec.UNSET
    reason = stop_reason(end)
    return CompletionChoice(end.index, text + end.completion.text, reason, logprobs, ids, output_error(end))


async def _chunks(run: Run, body: CompletionRequest) -> AsyncGenerator[bytes, None]:
    writer = ChunkWriter(run, body, _new_id(), "text_completion")
    texts = [one.text for one in run.started.echo or ()] or [""] * len(run.started.prompts)
    offsets = [len(text) for text in texts for _ in range(run.job.n)]  # of the next token

    try:
        if run.job.echo:
            for index in range(len(offsets)):
                text, logprobs = await asyncio.to_thread(_echoed, run, index)
                yield writer.chunk(index, {"text": text}, logprobs=logprobs)
        async for one in run:
            if isinstance(one, OutputDelta):
                found = None if one.logprobs is None else _extend(_empty(), one.logprobs, offsets[one.index])
                offsets[one.index] += sum(map(len, found.tokens)) if found else 0
                yield writer.chunk(one.index, {"text": one.text}, logprobs=found, ids=one.tokens)
            elif isinstance(one, Finished):
                yield writer.chunk(one.index, {"text": "", **error_field(one)}, stop_reason(one))
            elif body.wants_usage:
                yield writer.usage(one)
        yield DONE
    except ApiError as error:  # the status is sent already
        yield event(openai_body(error))


def _echoed(run: Run, index: int) -> tuple[str, CompletionLogprobs | None]:
    """The text of a prompt and how likely it was, as far as that was asked for."""
    wants = run.job.logprobs is not None
    if run.started.echo is None:
        return "", _empty() if wants else None
    echo = run.started.echo[index // run.job.n]
    if echo.logprobs is None:
        return echo.text, None
    found = CompletionLogprobs([echo.first], [None], [None], [0])
    return echo.text, _extend(found, echo.logprobs, len(echo.first))


def _empty() -> CompletionLogprobs:
    return CompletionLogprobs([], [], [], [])


def _extend(to: CompletionLogprobs, found: Sequence[TokenLogprob], offset: int) -> CompletionLogprobs:
    for one in found:
        to.tokens.append(one.text)
        to.token_logprobs.append(finite(one.logprob))
        to.top_logprobs.append(_top(one))
        to.text_offset.append(offset)
        offset += len(one.text)
    return to


def _top(logprob: TokenLogprob) -> dict[str, float]:
    """Tokens with one text, such as halves of characters, are told apart by their bytes, the way OpenAI writes them."""
    found: dict[str, float] = {}
    for one in logprob.top:
        name = one.text if one.text not in found else "bytes:" + "".join(f"\\x{byte:02x}" for byte in one.bytes)
        found[name] = finite(one.logprob)
    return found


def _new_id() -> str:
    return f"cmpl-{uuid4().hex}"
