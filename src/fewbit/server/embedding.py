"""Vectors for texts, for all APIs that have them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter_ns

from starlette.requests import Request

from ..arrays import Floats
from ..errors import FewbitError, RequestError, TooLong
from ..llm import LLM, Prompt
from .jobs import Job, Usage
from .runs import enter, failed, held
from .state import charge, state_of
from .text_work import check_chars, max_chars
from .tokens import work
from .waiting import unless_gone


@dataclass(frozen=True, slots=True)
class Embedded:
    """A row for each text, and the tokens of all of them."""

    model: str
    rows: Floats
    num_tokens: int
    load_ns: int  # until the model was there


async def embed(
    request: Request,
    model: str | None,
    texts: Sequence[Prompt],
    truncate: bool = False,
    *,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> Embedded:
    """Vectors of length 1. Texts that are too long are refused, or lose their ends with `truncate`.

    What is put before each text is a `prompt`, or one of the model's own by its name.
    """
    begun, state = perf_counter_ns(), state_of(request)
    entry = state.pool.find(model)
    async with AsyncExitStack() as stack:
        enter(state, entry, Job(prompts=texts[:1]), stack)  # one place, however many texts
        backend = await held(request, model, stack)
        load_ns = perf_counter_ns() - begun
        prompts = await work(request, backend, _encoded, texts, truncate, state.settings.max_prompt_tokens,
                             prompt, prompt_name)  # fmt: skip
        charge(request, sum(map(len, prompts)))
        try:
            rows = await unless_gone(request, backend.embed(prompts), state.settings.request_seconds)
        except FewbitError as error:
            raise failed(state, entry.name, backend, error) from error
    num_tokens = sum(map(len, prompts))
    request.scope["fewbit.usage"] = (entry.name, Usage(num_tokens, 0, 0))  # for the log
    return Embedded(entry.name, rows, num_tokens, load_ns)


def _encoded(
    llm: LLM, texts: Sequence[Prompt], truncate: bool, limit: int | None, prompt: str | None, prompt_name: str | None
) -> list[list[int]]:
    texts = llm.with_prompt(texts, prompt, prompt_name)
    most = llm.engine.max_length if limit is None else min(limit, llm.engine.max_length)
    if not truncate:
        check_chars(llm, *texts)
    found = [truncated(llm, text, most) if truncate else llm.encode_prompt(text) for text in texts]
    for number, tokens in enumerate(found):
        if not tokens:
            raise RequestError(f"input {number} is empty: it has no tokens")
        if len(tokens) > most:
            raise TooLong(f"input {number} has {len(tokens)} tokens, at most {most} are read; give less text",
                          len(tokens), most)  # fmt: skip
    return found


def truncated(llm: LLM, text: Prompt, most: int) -> list[int]:
    """The tokens of a text without those that do not fit. Text that would be cut off anyway is not tokenized."""
    return llm.truncated_prompt(text[: max_chars(llm)] if isinstance(text, str) else text, most)
