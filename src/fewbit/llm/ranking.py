"""Rerankers and classifiers: texts, alone or in pairs, to logits of labels, and those to scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Doubles, Floats
from ..engine.engine import Engine
from ..engine.reading import Embedding, Scoring
from ..engine.request import Request
from ..errors import DtypeError, RequestError, TooLong
from ..loading import Loaded
from ..text.tokenizer import Tokenizer
from .pooling import pool

JUDGE_SYSTEM = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
JUDGE_ANSWER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
VERDICTS = ("yes", "no")


@dataclass(frozen=True, slots=True)
class RankedText:
    """A text and how well it answers a query.

    Args:
        index: Its position in the list that was given.
        score: From 0 to 1.
        text: The text.
        logit: What the score was made of, any number.
    """

    index: int
    score: float
    text: str
    logit: float


@dataclass(frozen=True, slots=True)
class LabelHead:
    """The labels that a model gives logits of.

    Args:
        labels: Their names.
        is_multi_label: Several may hold at once: each has a probability of its own.
        is_judge: A language model that says yes or no, by its template.
    """

    labels: tuple[str, ...]
    is_multi_label: bool = False
    is_judge: bool = False

    @property
    def ranks(self) -> bool:
        """Whether it says how well a text answers a query."""
        return len(self.labels) == 1 or self.labels == VERDICTS

    def probabilities(self, logits: Floats) -> Doubles:
        """The probability of each label, (texts, labels).

        >>> LabelHead(("a", "b")).probabilities(np.array([[0, 0]], np.float32)).tolist()
        [[0.5, 0.5]]
        """
        values = logits.astype(np.float64)
        if self.is_multi_label or len(self.labels) == 1:
            return np.asarray(1 / (1 + np.exp(-values)))
        weights = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def relevance(self, logits: Floats) -> Doubles:
        """One logit for each text, whose sigmoid is its score."""
        values = logits.astype(np.float64)
        if not self.ranks:
            raise RequestError(f"the model is no reranker: it has the labels {', '.join(self.labels)}; try classify")
        return np.asarray(values[:, 0] if len(self.labels) == 1 else values[:, 0] - values[:, 1])


def find_head(loaded: Loaded, tokenizer: Tokenizer, architecture: str) -> LabelHead | None:
    """The labels of a model: those of its head; or yes and no, if it is of the family of Qwen3-Reranker."""
    if loaded.classifier is not None:
        names = tuple(loaded.classifier.names())
        is_judge = not loaded.is_encoder and tokenizer.token_id("<|im_start|>") is not None
        return LabelHead(names, loaded.classifier.is_multi_label, is_judge)
    if architecture == "qwen3" and not loaded.is_encoder and all(_verdict(tokenizer, one) for one in VERDICTS):
        return LabelHead(VERDICTS, is_judge=True)
    return None


def _verdict(tokenizer: Tokenizer, text: str) -> int | None:
    tokens = tokenizer.encode(text)
    return tokens[0] if len(tokens) == 1 else None


class PairEncoder:
    """Makes the token ids of a query and a text.

    Args:
        tokenizer: The model's tokenizer.
        engine: Limits their length.
        head: Of the model.
        second_text: What is added to the ids of the second text.
    """

    def __init__(self, tokenizer: Tokenizer, engine: Engine, head: LabelHead, second_text: int) -> None:
        self._tokenizer, self._engine, self._head, self._second_text = tokenizer, engine, head, second_text

    def encode(self, query: str, text: str, instruction: str | None, name: str, truncate: bool) -> list[int]:
        """The ids of a pair. Errors call the text `name`; `truncate` cuts it."""
        for value in (query, text):
            if not isinstance(value, str):
                raise DtypeError(f"a query and its texts must be str, not {type(value).__name__}")
        before, middle, after = self._parts(query, text, instruction)
        room = self._engine.max_length - len(before) - len(after)
        if room < 1:
            raise TooLong(f"the query does not fit: {self._engine.max_length} tokens fit, its text included")
        if len(middle) > room and not truncate:
            total = len(before) + len(middle) + len(after)
            raise TooLong(f"{name} has {total} tokens with the query, and {self._engine.max_length} fit; "
                          "truncate=True cuts it")  # fmt: skip
        return [*before, *middle[:room], *after]

    def _parts(self, query: str, text: str, instruction: str | None) -> tuple[list[int], list[int], list[int]]:
        """The tokens before a text, its own, and those after it."""
        if self._head.is_judge:
            known, encode = self._tokenizer, self._tokenizer.encode
            question = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: "
            begin = known.encode(JUDGE_SYSTEM, parse_special=True)
            whole, prefix = encode(question + text), encode(question)
            shared = next((at for at, pair in enumerate(zip(whole, prefix, strict=False)) if pair[0] != pair[1]),
                          min(len(whole), len(prefix)))  # fmt: skip
            return [*begin, *whole[:shared]], whole[shared:], known.encode(JUDGE_ANSWER, parse_special=True)
        if instruction is not None:
            raise RequestError("the model takes no instruction")
        first, second, end = self._tokenizer.encode_pair(query, text)
        return first, [token + self._second_text for token in second], [token + self._second_text for token in end]


class LabelScorer:
    """Makes requests for texts, and of what they gave a row of logits for each text.

    Args:
        engine: Makes the requests.
        loaded: The model.
        verdicts: Token ids of "yes" and "no", of a model without a head.
        texts: Token ids of each text.
    """

    def __init__(self, engine: Engine, loaded: Loaded, verdicts: Sequence[int], texts: Sequence[list[int]]) -> None:
        self._classifier = loaded.classifier
        self.requests: list[Request] = []
        self._rows: dict[Request, tuple[int, int]] = {}  # text, and label of a verdict
        width = len(verdicts) if loaded.classifier is None else loaded.classifier.num_labels
        self._logits = np.zeros((len(texts), width), np.float32)
        for number, tokens in enumerate(texts):
            if loaded.classifier is not None:
                is_last = loaded.classifier.pooling == "last"
                self._add(engine.embedding(tokens, last_only=is_last), number, 0)
                continue
            for label, verdict in enumerate(verdicts):
                self._add(engine.scoring([*tokens, verdict], first=len(tokens)), number, label)

    def _add(self, request: Request, number: int, label: int) -> None:
        self.requests.append(request)
        self._rows[request] = number, label

    def take(self, request: Request) -> None:
        """Take what a request gave."""
        number, label = self._rows[request]
        if isinstance(request, Scoring):
            self._logits[number, label] = request.scores.values[-1]
        elif isinstance(request, Embedding) and self._classifier is not None:
            if request.hidden is None:
                raise RequestError(f"a text was not read: {request.finish_reason}")
            self._logits[number] = self._classifier(pool(request.hidden, self._classifier.pooling))
            request.hidden = None

    def result(self) -> Floats:
        """The logits, (texts, labels)."""
        return self._logits


def ranked(texts: Sequence[str], head: LabelHead, logits: Floats, top_n: int | None) -> list[RankedText]:
    """Texts, the best first."""
    relevance = head.relevance(logits)
    scores = 1 / (1 + np.exp(-relevance))
    order = np.argsort(-relevance, kind="stable")[: len(texts) if top_n is None else top_n].tolist()
    return [RankedText(i, float(scores[i]), texts[i], float(relevance[i])) for i in order]


def check_texts(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise DtypeError(f"texts must be a list of str, not {type(texts).__name__}")
    if not texts:
        raise RequestError("texts must hold at least one text, got none")
    return [*texts]
