"""The one way from any API to the engine: a `Job` in, events out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from ..engine.embedded import EmbeddedPrompt
from ..errors import RequestError, TooLong
from ..llm import LLM, Completion, Prompt, TextDelta, TokenLogprob
from ..llm.reply_constraint import ReplyRules, reply_constraint
from ..text.grammar import ConstraintFactory, Grammar
from ..text.infill import infill_prompt
from ..text.reply import Event, tool_schemas
from .errors import ApiError, out_of_time
from .images import images_in
from .output_formats import OutputFormat
from .prompts import ChatInput, Truncation, chat_prompt
from .replies import ReplyReader, ReplyStyle, WholeReply, answer_text
from .text_work import check_chars, count_chars
from .tools import Tools

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
    tools: Tools = field(default_factory=Tools)
    output: OutputFormat | None = None  # what an answer must look like
    thought_tokens: int | None = None  # after which a thought is ended
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
        if self.output is not None or self.thought_tokens is not None or any(images_in(self.messages)):
            return False
        texts = (self.messages or (), self.tools.functions, self.prompts, self.suffix)
        return sum(map(len, texts[:3])) <= SHORT_ITEMS and count_chars(texts) <= SHORT_CHARS


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as an output repeats it: its text, that of its first token, and how likely those after it were."""

    text: str
    first: str
    logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """What was asked can be done.

    Args:
        prompts: Their token ids.
        echo: One for each prompt, if the job wants them.
        ignored: What was left out of the request.
        active: Outputs that run already.
    """

    prompts: list[list[int]]
    echo: list[Echo] | None = None
    ignored: Sequence[str] = ()
    active: int = 0


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What is new of output `index`: the `n` of the first prompt, those of the second ..."""

    index: int
    text: str  # of the answer
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    events: Sequence[Event] = ()  # thoughts, text and calls


@dataclass(frozen=True, slots=True)
class Finished:
    """An output is complete: "stop", "length", or "invalid" if it is not what it had to be, with the `error`."""

    index: int
    reason: str
    completion: Completion
    reply: WholeReply
    stop_string: str | None = None  # that ended it
    error: str | None = None

    @property
    def is_invalid(self) -> bool:
        return self.error is not None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all prompts and outputs. It comes last."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # of the prompts, known from before
    thought_tokens: int = 0  # of the outputs

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


RunEvent = Started | OutputDelta | Finished | Usage
InThread = Callable[..., Awaitable[Any]]


async def run(job: Job, llm: LLM, in_thread: InThread = asyncio.to_thread) -> AsyncGenerator[RunEvent, None]:
    """`Started`, then `Delta`s, a `Finished` for each output, and `Usage`. Long prompts are made `in_thread`.

    What cannot be done is refused before `Started`. `aclose` ends it at once, and its requests in the engine too.
    """
    asked: PreparedJob = _asked(job, llm) if job.is_short else await in_thread(_asked, job, llm)
    options = {
        **job.options, "n": job.n, "logprobs": job.logprobs, "namespace": job.namespace, "priority": job.priority,
        "client": job.client,
    }  # fmt: skip
    parts = await llm.aparts(asked.prompts, embedded=asked.embedded, **options)
    readers = [ReplyReader(asked.style) for _ in range(job.num_outputs)]
    async with aclosing(parts):
        echo = await _echo(job, llm, asked.prompts) if job.echo else None
        yield Started(asked.prompts, echo, [*job.ignored], llm.engine.stats().active)
        finished: list[Completion] = []
        async for part in parts:
            reader = readers[part.index]
            events = reader.feed(part.text, len(part.tokens))
            if part.completion is not None:
                events += reader.finish()
            if events or part.tokens:
                yield OutputDelta(part.index, answer_text(events), part.tokens, part.logprobs, events)
            if part.completion is not None:
                finished.append(part.completion)
                yield await _finished(part, part.completion, reader.whole(), asked, in_thread)
    yield _usage(asked.prompts, finished, job.n, sum(reader.thought_tokens for reader in readers))


async def _finished(
    part: TextDelta, completion: Completion, reply: WholeReply, asked: PreparedJob, in_thread: InThread
) -> Finished:
    """What ran out of time ends like what ran out of room; it is an error if nothing was written."""
    if completion.finish_reason == "deadline":
        if not completion.tokens:
            raise out_of_time()
        return Finished(part.index, "length", completion, reply)
    is_checked = completion.finish_reason == "stop" and asked.is_checked
    error = await in_thread(asked.error, reply) if is_checked else None
    reason = completion.finish_reason if error is None else "invalid"
    return Finished(part.index, reason, completion, reply, part.stop_string, error)


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """Token ids of the prompts, how the model writes its replies, and the grammar of its answers."""

    prompts: list[list[int]]
    style: ReplyStyle | None = None
    grammar: Grammar | None = None
    needs_call: bool = False
    embedded: EmbeddedPrompt | None = None  # images in the prompt

    @property
    def is_checked(self) -> bool:
        """Whether a complete reply may be wrong."""
        return self.needs_call or self.grammar is not None

    def error(self, reply: WholeReply) -> str | None:
        """What is wrong with a complete reply."""
        if reply.calls:
            return None
        if self.needs_call:
            return "the model had to call a function, and called none"
        return None if self.grammar is None else self.grammar.check(reply.text)


def _asked(job: Job, llm: LLM) -> PreparedJob:
    """What is asked of the engine, made in a thread: long texts and large grammars take long."""
    check_chars(llm, job.messages, job.tools.functions, *job.prompts, job.suffix)
    style = embedded = None
    if job.messages is not None:
        asked = ChatInput(
            job.messages, job.tools.shown, job.template, job.continues, needs_call=job.tools.choice == "required",
            is_parallel=job.tools.parallel, **job.rules,
        )  # fmt: skip
        prompt = chat_prompt(llm, asked, _truncation(job, llm))
        found, style, embedded = [prompt.tokens], prompt.style, llm.embed_images(prompt.messages, prompt.tokens)
        job.ignored += prompt.ignored
    else:
        found = [_encoded(llm, prompt, job.suffix) for prompt in job.prompts]
    for tokens in found:
        if job.max_prompt_tokens is not None and len(tokens) > job.max_prompt_tokens:
            raise TooLong(f"a prompt of {len(tokens)} tokens is too long: at most {job.max_prompt_tokens} are read",
                          len(tokens), job.max_prompt_tokens)  # fmt: skip
    if style is not None:
        job.options["visible_tokens"] = [*llm.control_tokens(style.format).values()]
    grammar, answer = (None, None) if job.output is None else job.output.compiled(llm.grammars)
    constraint = _constraint(job, llm, answer, style)
    if constraint is not None:
        job.options["constraint"] = constraint
    return PreparedJob(found, style, grammar, job.tools.choice == "required", embedded)


def _constraint(
    job: Job, llm: LLM, answer: ConstraintFactory | None, style: ReplyStyle | None
) -> ConstraintFactory | None:
    if style is None:
        return answer
    rules = ReplyRules(
        style.format, llm.control_tokens(style.format), tool_schemas(style.tools), job.tools.name,
        job.tools.choice == "required", style.max_calls is None, job.tools.strict, style.may_think,
        style.opens_thought, job.thought_tokens,
    )  # fmt: skip
    try:
        return reply_constraint(lambda: llm.grammars, rules, answer)
    except RequestError as error:
        raise ApiError(400, str(error), "tools", "invalid_grammar") from None


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


async def _echo(job: Job, llm: LLM, prompts: list[list[int]]) -> list[Echo]:
    """Tokens that are no text, such as BOS, are left out of the texts."""
    logprobs: Sequence[list[TokenLogprob] | None] = [None] * len(prompts)
    if job.logprobs is not None:
        logprobs = await llm.atoken_logprobs(
            prompts, job.logprobs, namespace=job.namespace, adapter=job.options.get("adapter")
        )
    texts = [llm.tokenizer.decode(tokens, skip_special=True) for tokens in prompts]
    firsts = [llm.tokenizer.token_bytes(tokens[0]).decode("utf-8", "replace") for tokens in prompts]
    return [*map(Echo, texts, firsts, logprobs)]


def _usage(prompts: list[list[int]], finished: list[Completion], n: int, thought_tokens: int) -> Usage:
    return Usage(
        sum(map(len, prompts)),
        sum(one.generated_tokens for one in finished),
        sum(one.cached_tokens for one in finished) // n,  # of one prompt it is the same for all
        thought_tokens,
    )
