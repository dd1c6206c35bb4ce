"""The one way from any API to the engine: a `Job` in, events out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from ..errors import RequestError, TooLong
from ..llm import LLM, Completion, Prompt, TextDelta, TokenLogprob
from ..text.infill import infill_prompt
from .errors import out_of_time
from .prompts import Conversation, Truncation, chat_prompt
from .text_work import check_chars, count_chars

SHORT_ITEMS, SHORT_CHARS = 8, 512  # of a prompt that takes well below a millisecond
OPTIONS = frozenset(
    (
        "max_tokens", "min_tokens", "stop", "stop_token_ids", "seed", "logit_bias", "temperature", "top_k", "top_p",
        "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    )
)  # fmt: skip


@dataclass(slots=True)
class Job:
    """What is asked of a model: messages, or prompts. `options` are those of `LLM.generate`, by its names."""

    prompts: Sequence[Prompt] = ()
    messages: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    template: Mapping[str, Any] | None = None  # names that the chat template looks for
    options: dict[str, Any] = field(default_factory=dict)
    n: int = 1  # outputs of each prompt
    logprobs: int | None = None  # tell how likely each token was, and so many of the likeliest ones
    echo: bool = False  # with `logprobs`: tell how likely the tokens of the prompt were
    priority: int = 0  # higher ones are run first
    client: str = ""  # clients that wait for each other get the same number of tokens
    namespace: str = ""  # prompts share what was computed within one only
    default_tokens: int | None = None  # `max_tokens` where the options name none; None: until the context is full
    max_prompt_tokens: int | None = None
    continues: bool | None = None  # the last message; None: if it is the assistant's
    rules: Mapping[str, Any] = field(default_factory=dict)  # of this server, for conversations: see `prompt_rules`
    truncates: bool = False  # the oldest messages are left out if the prompt is too long
    max_context: int | None = None  # tokens of the context that are used; None: all
    suffix: str | None = None  # of prompts: the model writes what is between them
    ignored: list[str] = field(default_factory=list)  # what was left out of the request

    @property
    def num_outputs(self) -> int:
        return self.n * (1 if self.messages is not None else len(self.prompts))

    @property
    def is_short(self) -> bool:
        """Whether its prompt is made faster than a thread for it would be found."""
        texts = (self.messages or (), self.tools or (), self.prompts, self.suffix)
        return sum(map(len, texts[:3])) <= SHORT_ITEMS and count_chars(texts) <= SHORT_CHARS


@dataclass(frozen=True, slots=True)
class Started:
    """What was asked can be done. `echo` holds for each prompt how likely its tokens after the first were."""

    prompts: list[list[int]]  # token ids
    echo: list[list[TokenLogprob]] | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Some more of output `index`: the `n` of the first prompt, those of the second ..."""

    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """An output is complete: "stop" or "length"."""

    index: int
    reason: str
    completion: Completion
    stop_string: str | None = None  # that ended it


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all prompts and outputs. It comes last."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # of the prompts, known from before

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


Event = Started | Delta | Finished | Usage
InThread = Callable[..., Awaitable[Any]]


async def run(job: Job, llm: LLM, in_thread: InThread = asyncio.to_thread) -> AsyncGenerator[Event, None]:
    """`Started`, then `Delta`s, a `Finished` for each output, and `Usage`. Long prompts are made `in_thread`.

    What cannot be done is refused before `Started`. `aclose` ends it at once, and its requests in the engine too.
    """
    prompts: list[list[int]] = _prompts(job, llm) if job.is_short else await in_thread(_prompts, job, llm)
    options = {
        **job.options, "n": job.n, "logprobs": job.logprobs, "namespace": job.namespace, "priority": job.priority,
        "client": job.client,
    }  # fmt: skip
    parts = await llm.aparts(prompts, **options)
    async with aclosing(parts):
        yield Started(prompts, await _echo(job, llm, prompts))
        finished: list[Completion] = []
        async for part in parts:
            if part.text or part.tokens:
                yield Delta(part.index, part.text, part.tokens, part.logprobs)
            if part.completion is not None:
                finished.append(part.completion)
                yield _finished(part, part.completion)
    yield _usage(prompts, finished, job.n)


def _finished(part: TextDelta, completion: Completion) -> Finished:
    """What ran out of time ends like what ran out of room; it is an error if nothing was written."""
    if completion.finish_reason != "deadline":
        return Finished(part.index, completion.finish_reason, completion, part.stop_string)
    if not completion.tokens:
        raise out_of_time()
    return Finished(part.index, "length", completion)


def _prompts(job: Job, llm: LLM) -> list[list[int]]:
    """Token ids of what was asked, in a thread: long texts take long."""
    check_chars(llm, job.messages, job.tools, *job.prompts, job.suffix)
    if job.messages is not None:
        asked = Conversation(job.messages, job.tools, job.template, job.continues, **job.rules)
        prompt = chat_prompt(llm, asked, _truncation(job, llm))
        found, job.tools = [prompt.tokens], prompt.tools
        job.ignored += prompt.ignored
    else:
        found = [_encoded(llm, prompt, job.suffix) for prompt in job.prompts]
    for tokens in found:
        if job.max_prompt_tokens is not None and len(tokens) > job.max_prompt_tokens:
            raise TooLong(f"a prompt of {len(tokens)} tokens is too long: at most {job.max_prompt_tokens} are read",
                          len(tokens), job.max_prompt_tokens)  # fmt: skip
    return found


def _truncation(job: Job, llm: LLM) -> Truncation | None:
    """How long a prompt may be, and how long it is left if it is longer: with room for an answer."""
    if not job.truncates:
        return None
    context = min(job.max_context or llm.engine.max_length, llm.engine.max_length)
    room = min(job.options.get("max_tokens") or context // 4, context // 2)
    limit = context if job.max_prompt_tokens is None else job.max_prompt_tokens
    return Truncation(min(context - 1, limit), min(context - max(room, 1), limit))


def _encoded(llm: LLM, prompt: Prompt, suffix: str | None) -> list[int]:
    if suffix is None:
        return llm.encode_prompt(prompt)
    if not isinstance(prompt, str):
        raise RequestError("suffix needs a prompt of text, got token ids")
    for text in (prompt, suffix):
        llm.encode_prompt(text)  # refuses what is far too long
    return infill_prompt(llm.tokenizer, prompt, suffix)


async def _echo(job: Job, llm: LLM, prompts: list[list[int]]) -> list[list[TokenLogprob]] | None:
    if not job.echo or job.logprobs is None:
        return None
    return await llm.atoken_logprobs(prompts, job.logprobs, namespace=job.namespace)


def _usage(prompts: list[list[int]], finished: list[Completion], n: int) -> Usage:
    return Usage(
        sum(map(len, prompts)),
        sum(one.generated_tokens for one in finished),
        sum(one.cached_tokens for one in finished) // n,  # of one prompt it is the same for all
    )
