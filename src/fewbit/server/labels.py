"""Texts that rerankers and classifiers give logits of, for all APIs that have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from ..arrays import Floats
from ..errors import FewbitError, RequestError
from ..llm import LLM
from ..llm.ranking import LabelHead
from .jobs import Job, Usage
from .runs import enter, failed, held
from .state import charge, state_of
from .text_work import check_chars
from .tokens import work
from .waiting import unless_gone


@dataclass(frozen=True, slots=True)
class Labelled:
    """A row of logits for each text, the labels that they stand for, and the tokens of all texts."""

    model: str
    head: LabelHead
    logits: Floats
    num_tokens: int


Pair = tuple[str, str]  # a query and a text
Encoded = tuple[LabelHead, list[list[int]]]


async def label_texts(request: Request, model: str | None, encode: Callable[..., Encoded], *given: Any) -> Labelled:
    """Logits of the texts that `encode(llm, *given, limit)` makes; at most `limit` tokens of each are read."""
    state = state_of(request)
    entry = state.pool.find(model)
    async with AsyncExitStack() as stack:
        enter(state, entry, Job(prompts=["text"]), stack)  # one place, however many texts
        backend = await held(request, model, stack)
        head, prompts = await work(request, backend, encode, *given, state.settings.max_prompt_tokens)
        num_tokens = sum(map(len, prompts))
        charge(request, num_tokens)
        try:
            logits = await unless_gone(request, backend.embed(prompts, "rank"), state.settings.request_seconds)
        except FewbitError as error:
            raise failed(state, entry.name, backend, error) from error
    request.scope["fewbit.usage"] = (entry.name, Usage(num_tokens, 0, 0))  # for the log
    return Labelled(entry.name, head, logits, num_tokens)


def encode_pairs(
    llm: LLM, pairs: Sequence[Pair], instruction: str | None, truncate: bool, field: str, limit: int | None
) -> Encoded:
    """The token ids of pairs, for a reranker."""
    head = _head(llm)
    if not head.ranks:
        raise RequestError(f"the model is no reranker: it has the labels {', '.join(head.labels)}")
    if not truncate:
        check_chars(llm, *(text for pair in pairs for text in pair))
    found = [
        llm.encode_pair(query, text, instruction, f"{field} {number}", truncate)
        for number, (query, text) in enumerate(pairs)
    ]
    return head, _within(found, limit)


def encode_texts(llm: LLM, texts: Sequence[str | list[int]], truncate: bool, limit: int | None) -> Encoded:
    """The token ids of texts, for a classifier."""
    head = _head(llm)
    if not truncate:
        check_chars(llm, *texts)
    return head, _within([llm.encode_text(text, f"input {n}", truncate) for n, text in enumerate(texts)], limit)


def _head(llm: LLM) -> LabelHead:
    if llm.head is None:
        raise RequestError("the model has no head for labels: it is neither a reranker nor a classifier")
    return llm.head


def _within(prompts: list[list[int]], limit: int | None) -> list[list[int]]:
    longest = max(map(len, prompts))
    if limit is not None and longest > limit:
        raise RequestError(f"a text has {longest} tokens, at most {limit} are read; give less text")
    return prompts
