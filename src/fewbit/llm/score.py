"""Log-probabilities of texts: the requests of `LLM.score`, `LLM.token_logprobs` and `LLM.classify`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.adapters import Adapter
from ..engine.reading import Scoring
from ..engine.request_checks import check_logprobs
from ..engine.sharing import common_prefix
from ..errors import DtypeError, RequestError
from .chat import ChatMessage
from .prompts import Prompt, PromptEncoder, split_prompts

ScoredText = str | Iterable[int]
ScoredTexts = list[str] | list[list[int]] | list[Prompt]
Scored = ScoredText | ScoredTexts
Prefix = ScoredText | None


def scorings(
    prompts: PromptEncoder, text: Scored, prefix: Prefix, top: int | None, namespace: str, adapter: Adapter = None
) -> tuple[list[Scoring], bool]:
    """A request for each text after a prefix, and whether a list of texts was given."""
    texts, several = split_prompts(text)  # type: ignore[arg-type]
    most = None if top is None else check_logprobs(top, prompts.engine.executor.vocab, "top")
    before = prefix if prefix is None or isinstance(prefix, str) else _to_list(prefix, "prefix")
    spans = [_span(prompts, before, text) for text in texts]
    make = prompts.engine.scoring
    return [
        make(tokens, first=first, logprobs=most, namespace=namespace, adapter=adapter) for tokens, first in spans
    ], several


def label_scorings(
    prompts: PromptEncoder,
    encode_chat: Callable[[Sequence[ChatMessage]], list[int]],
    prompt: Prompt | Sequence[ChatMessage],
    labels: Sequence[str],
    separator: str | None,
    namespace: str,
    adapter: Adapter = None,
) -> list[Scoring]:
    """A request for each label after a prompt. All are given the same tokens."""
    _check_labels(labels, separator)
    if isinstance(prompt, str):
        texts = [f"{_space(prompt, label) if separator is None else separator}{label}" for label in labels]
        spans = [_span(prompts, prompt, text) for text in texts]
    else:
        items = _to_list(prompt, "prompt")
        if not items:
            raise RequestError("the prompt is empty: it has no tokens")
        tokens = encode_chat(items) if isinstance(items[0], Mapping) else items
        spans = [_span(prompts, tokens, prompts.tokenizer.encode(f"{separator or ''}{label}")) for label in labels]
    first = min(first for _, first in spans)
    return [prompts.engine.scoring(tokens, first=first, namespace=namespace, adapter=adapter) for tokens, _ in spans]


def probabilities(labels: Sequence[str], requests: Sequence[Scoring], per_token: bool) -> dict[str, float]:
    """The probabilities of labels among each other, the likeliest first."""
    values = [request.scores.values.astype(np.float64) for request in requests]
    scores = np.array([value.mean() if per_token else value.sum() for value in values])
    weights = np.exp(scores - scores.max()) if np.isfinite(scores).any() else np.ones(len(scores))
    found = dict(zip(labels, (weights / weights.sum()).tolist(), strict=True))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _span(prompts: PromptEncoder, prefix: str | list[int] | None, text: Prompt) -> tuple[list[int], int]:
    """The tokens of a text after its prefix, and the position of the first that is scored."""
    if prefix is None:
        return prompts.encode(text), 1
    if isinstance(prefix, str) != isinstance(text, str):
        raise DtypeError("prefix and text must both be text, or both be token ids")
    if isinstance(prefix, str):
        tokens = prompts.encode(f"{prefix}{text}")
        first = common_prefix(prompts.encode(prefix), tokens)
    else:
        tokens, first = [*prefix, *text], len(prefix)
    if first == len(tokens):
        raise RequestError("the text after the prefix is empty: it has no tokens")
    return tokens, max(1, first)


def _to_list(values: Any, what: str) -> list[Any]:
    if isinstance(values, bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise DtypeError(f"{what} must be text or token ids, not {type(values).__name__}")
    return list(values)


def _check_labels(labels: Sequence[str], separator: str | None) -> None:
    if isinstance(labels, str) or not isinstance(labels, Sequence):
        raise DtypeError(f"labels must be a list of str, not {type(labels).__name__}")
    if not labels:
        raise RequestError("labels must hold at least one label, got none")
    for label in labels:
        if not isinstance(label, str) or not label:
            raise DtypeError(f"labels must be str and not empty, got {label!r}")
    if len(set(labels)) < len(labels):
        raise RequestError(f"labels must differ from each other, got {list(labels)}")
    if separator is not None and not isinstance(separator, str):
        raise DtypeError(f"separator must be a str, not {type(separator).__name__}")


def _space(prompt: str, label: str) -> str:
    """
    >>> _space("Answer:", "yes"), _space("Answer: ", "yes"), _space("", "yes")
    (' ', '', '')
    """
    return " " if prompt and not prompt[-1].isspace() and not label[0].isspace() else ""
