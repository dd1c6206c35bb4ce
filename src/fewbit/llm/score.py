"""`LLM.score`, `LLM.token_logprobs` and `LLM.classify`, with their versions for event loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from ..arrays import Floats
from ..engine.engine import Engine
from ..engine.request import Scoring
from ..engine.sharing import common_prefix
from ..engine.validation import check_logprobs
from ..engine.worker import Worker
from ..errors import DtypeError, RequestError
from ..text.tokenizer import Tokenizer
from ..validation import to_flag
from .completion import TokenLogprob
from .fold import arun, in_thread, run
from .logprobs import scored_tokens
from .sampling_options import Message, Prompt, split_prompts

Text = str | Iterable[int]
Texts = list[str] | list[list[int]] | list[Prompt]


class Scores(ABC):
    """What an LLM has for log-probabilities. Texts of one call run in one batch; what they begin with is run once."""

    engine: Engine
    tokenizer: Tokenizer
    _worker: Worker

    @abstractmethod
    def _encode(self, prompt: str | Iterable[int]) -> Iterable[int]: ...

    @abstractmethod
    def chat_prompt(self, messages: Sequence[Message]) -> list[int]: ...

    @overload
    def score(self, text: Text, prefix: Text | None = None, *, namespace: str = "") -> Floats: ...
    @overload
    def score(self, text: Texts, prefix: Text | None = None, *, namespace: str = "") -> list[Floats]: ...
    def score(self, text: Text | Texts, prefix: Text | None = None, *, namespace: str = "") -> Floats | list[Floats]:
        """The log-probability of each token of a text, given those before it.

        Without a prefix there is one number for each token after the first; text gets the special tokens that the model
        expects, as in `generate`, so after BOS its first token counts too. A list of texts gives a list of arrays.

        With a prefix there is one number for each token of the text. Two strings are tokenized together, as they are in
        `score(prefix + text)`: where a token spans the end of the prefix, it is the first that is scored. A prefix that
        several texts have in common runs once.

        Args:
            text: Text or token ids, or a list of them.
            prefix: What comes before each text and is not scored: text if `text` is, else token ids.
            namespace: Requests share cached prefixes within one namespace only.
        """
        requests, several = self._scorings(text, prefix, None, namespace)
        run(self._worker, requests, _ignore)
        values = [request.scores.values for request in requests]
        return values if several else values[0]

    @overload
    async def ascore(self, text: Text, prefix: Text | None = None, *, namespace: str = "") -> Floats: ...
    @overload
    async def ascore(self, text: Texts, prefix: Text | None = None, *, namespace: str = "") -> list[Floats]: ...
    async def ascore(
        self, text: Text | Texts, prefix: Text | None = None, *, namespace: str = ""
    ) -> Floats | list[Floats]:
        """`score` that does not block the event loop."""
        requests, several = await in_thread(lambda: self._scorings(text, prefix, None, namespace))
        await arun(self._worker, requests, _ignore)
        values = [request.scores.values for request in requests]
        return values if several else values[0]

    @overload
    def token_logprobs(
        self, text: Text, top: int = 0, prefix: Text | None = None, *, namespace: str = ""
    ) -> list[TokenLogprob]: ...
    @overload
    def token_logprobs(
        self, text: Texts, top: int = 0, prefix: Text | None = None, *, namespace: str = ""
    ) -> list[list[TokenLogprob]]: ...
    def token_logprobs(
        self, text: Text | Texts, top: int = 0, prefix: Text | None = None, *, namespace: str = ""
    ) -> list[TokenLogprob] | list[list[TokenLogprob]]:
        """`score` with the tokens themselves, and the likeliest tokens in the place of each.

        Args:
            text: Text or token ids, or a list of them.
            top: How many of the likeliest tokens to list at each position.
            prefix: What comes before each text and is not scored.
            namespace: Requests share cached prefixes within one namespace only.
        """
        requests, several = self._scorings(text, prefix, top, namespace)
        run(self._worker, requests, _ignore)
        found = self._listed(requests)
        return found if several else found[0]

    @overload
    async def atoken_logprobs(
        self, text: Text, top: int = 0, prefix: Text | None = None, *, namespace: str = ""
    ) -> list[TokenLogprob]: ...
    @overload
    async def atoken_logprobs(
        self, text: Texts, top: int = 0, prefix: Text | None = None, *, namespace: str = ""
    ) -> list[list[TokenLogprob]]: ...
    async def atoken_logprobs(
        self, text: Text | Texts, top: int = 0, prefix: Text | None = None, *, namespace: str = ""
    ) -> list[TokenLogprob] | list[list[TokenLogprob]]:
        """`token_logprobs` that does not block the event loop."""
        requests, several = await in_thread(lambda: self._scorings(text, prefix, top, namespace))
        await arun(self._worker, requests, _ignore)
        found = await in_thread(lambda: self._listed(requests))
        return found if several else found[0]

    def classify(
        self,
        prompt: Prompt | Sequence[Message],
        labels: Sequence[str],
        *,
        separator: str | None = None,
        per_token: bool = False,
        namespace: str = "",
    ) -> dict[str, float]:
        """How likely each label is to continue a prompt: probabilities that add up to 1, the likeliest label first.

            llm.classify("The capital of France is", ["Paris", "London"])

        Only the labels are compared: how likely the model is to write something else does not count. The prompt runs
        once for all of them.

        Args:
            prompt: Text, token ids, or messages, which the chat template turns into a prompt for an answer.
            labels: Different texts. After token ids and messages they are tokenized on their own.
            separator: What stands between the prompt and a label. Default: a space after text that does not end with
                white space, if the label does not begin with it; else nothing.
            per_token: Compare the mean log-probability of a label's tokens, not the sum, which favours short labels.
            namespace: Requests share cached prefixes within one namespace only.
        """
        requests = self._label_scorings(prompt, labels, separator, namespace)
        mean = to_flag(per_token, "per_token")
        run(self._worker, requests, _ignore)
        return _probabilities(labels, requests, mean)

    async def aclassify(
        self,
        prompt: Prompt | Sequence[Message],
        labels: Sequence[str],
        *,
        separator: str | None = None,
        per_token: bool = False,
        namespace: str = "",
    ) -> dict[str, float]:
        """`classify` that does not block the event loop."""
        requests = await in_thread(lambda: self._label_scorings(prompt, labels, separator, namespace))
        mean = to_flag(per_token, "per_token")
        await arun(self._worker, requests, _ignore)
        return _probabilities(labels, requests, mean)

    def _scorings(
        self, text: Text | Texts, prefix: Text | None, top: int | None, namespace: str
    ) -> tuple[list[Scoring], bool]:
        texts, several = split_prompts(text)  # type: ignore[arg-type]
        most = None if top is None else check_logprobs(top, self.engine.executor.vocab, "top")
        before = prefix if prefix is None or isinstance(prefix, str) else _to_list(prefix, "prefix")
        requests = []
        for one in texts:
            tokens, first = self._after(before, one)
            requests.append(self.engine.scoring(tokens, first=first, logprobs=most, namespace=namespace))
        return requests, several

    def _after(self, prefix: str | list[int] | None, text: Prompt) -> tuple[list[int], int]:
        """The tokens of a text after its prefix, and which is the first that is scored."""
        if prefix is None:
            return list(self._encode(text)), 1
        if isinstance(prefix, str) != isinstance(text, str):
            raise DtypeError("prefix and text must both be text, or both be token ids")
        if isinstance(prefix, str):
            tokens = list(self._encode(f"{prefix}{text}"))
            first = common_prefix(list(self._encode(prefix)), tokens)
        else:
            tokens, first = [*prefix, *text], len(prefix)
        if first == len(tokens):
            raise RequestError("the text after the prefix is empty: it has no tokens")
        return tokens, max(1, first)

    def _label_scorings(
        self, prompt: Prompt | Sequence[Message], labels: Sequence[str], separator: str | None, namespace: str
    ) -> list[Scoring]:
        _check_labels(labels, separator)
        if isinstance(prompt, str):
            texts = [f"{_space(prompt, label) if separator is None else separator}{label}" for label in labels]
            pairs = [self._after(prompt, text) for text in texts]
        else:
            tokens = self._prompt_ids(prompt)
            ids = [self.tokenizer.encode(f"{separator or ''}{label}") for label in labels]
            pairs = [self._after(tokens, one) for one in ids]
        first = min(first for _, first in pairs)  # all labels are given the same tokens
        return [self.engine.scoring(tokens, first=first, namespace=namespace) for tokens, _ in pairs]

    def _prompt_ids(self, prompt: Sequence[int] | Sequence[Message]) -> list[int]:
        items = _to_list(prompt, "prompt")
        if not items:
            raise RequestError("the prompt is empty: it has no tokens")
        return self.chat_prompt(items) if isinstance(items[0], Mapping) else items

    def _listed(self, requests: Sequence[Scoring]) -> list[list[TokenLogprob]]:
        return [scored_tokens(self.tokenizer, request.tokens, request.scores) for request in requests]


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


def _probabilities(labels: Sequence[str], requests: Sequence[Scoring], mean: bool) -> dict[str, float]:
    values = [request.scores.values.astype(np.float64) for request in requests]
    scores = np.array([one.mean() if mean else one.sum() for one in values])
    weights = np.exp(scores - scores.max()) if np.isfinite(scores).any() else np.ones(len(scores))
    found = dict(zip(labels, (weights / weights.sum()).tolist(), strict=True))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _ignore(request: Scoring) -> None:
    pass
