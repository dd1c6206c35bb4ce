"""The figures of a replica, measured on this machine: steps of the engine in which the numbers are known."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

from ..engine.engine import Engine
from ..engine.request import Generation
from ..errors import RequestError
from ..llm import LLM
from ..ops.sampling import SamplingParams
from .figures import ReplicaFigures

SHORT = 16  # tokens of a prompt whose context costs nothing
GREEDY = SamplingParams(temperature=0.0)

Clock = Callable[[], float]
Report = Callable[[str], object]


def measure(
    llm: LLM, rounds: int = 9, clock: Clock = perf_counter, sampling: SamplingParams = GREEDY, tell: Report = str
) -> ReplicaFigures:
    """Measure a model that nobody uses meanwhile.

    Args:
        llm: The model.
        rounds: Steps of each kind; the median counts.
        clock: What times are measured by, in seconds.
        sampling: How tokens are sampled.
        tell: Called with what is measured next.
    """
    llm.engine.check_writes()
    return _Measurement(llm, rounds, clock, sampling, tell).figures()


class _Measurement:
    def __init__(self, llm: LLM, rounds: int, clock: Clock, sampling: SamplingParams, tell: Report) -> None:
        self._llm, self._rounds, self._clock, self._sampling, self._tell = llm, rounds, clock, sampling, tell
        self._engine: Engine = llm.engine
        self._random = np.random.default_rng(0)
        self._batched, self._most = llm.loaded.executor.max_batched_tokens, llm.loaded.max_seqs
        self._room = self._engine.max_length - 2 * rounds - 4  # tokens of a prompt
        if self._room < SHORT:
            raise RequestError(f"a context of {self._engine.max_length} tokens is too short to measure; use --ctx")

    def figures(self) -> ReplicaFigures:
        steps = [(count, *self._decode(count, SHORT)) for count in _powers(self._most)]
        sizes = [count for count in _powers(self._batched) if count <= self._room]
        prefill = [(count, self._prefill(count)) for count in sizes]
        pages, page_tokens = self._pages()
        context_seconds, pair_seconds, request_seconds = self._context(), self._pairs(), self._request(dict(prefill))
        decode = [(count, max(seconds - context_seconds * tokens, seconds / 4)) for count, seconds, tokens in steps]
        alone = [
            (count, max(seconds - request_seconds - pair_seconds * count * count / 2, seconds / 4))
            for count, seconds in prefill
        ]  # fmt: skip
        return ReplicaFigures(
            self._llm.model_name, decode, alone, context_seconds, pair_seconds, request_seconds, self._most,
            self._batched, pages, page_tokens, self._llm.loaded.cache.layout.token_bytes,
        )  # fmt: skip

    def _decode(self, count: int, depth: int) -> tuple[float, float]:
        """Seconds of a step that writes a token of each of so many sequences, and the tokens that they attend to."""
        self._tell(f"{count} sequences of {depth} tokens")
        requests = [self._request_of(depth, 2 * self._rounds + 4 + count) for _ in range(count)]
        while any(request.num_remaining > 1 or not request.is_writing for request in requests):
            self._engine.step()
        self._engine.step()
        seconds = median(self._step() for _ in range(self._rounds))
        tokens = sum(len(request.tokens) for request in requests) - count * self._rounds / 2
        self._end(requests)
        return seconds, tokens

    def _prefill(self, count: int, prompts: int = 1) -> float:
        """Seconds of a step that runs so many tokens of each of some prompts, the last ones."""
        self._tell(f"prompts of {count} tokens")
        times = []
        for _ in range(max(3, self._rounds // 2)):
            requests = [self._request_of(count, 2) for _ in range(prompts)]
            times.append(self._step())
            self._end(requests)
        return median(times[1:])

    def _request(self, prefill: dict[int, float]) -> float:
        """Seconds for each prompt beside those of its tokens: several short ones in a step, and one as long."""
        count = min(8, self._most, self._batched // SHORT)
        whole = SHORT * count
        if count < 2 or whole not in prefill:
            return 0.0
        return max(0.0, (self._prefill(SHORT, count) - prefill[whole]) / (count - 1))

    def _context(self) -> float:
        """Seconds for each token of context of a written token."""
        depth, count = min(self._room, 1024), min(4, self._most)
        depth = min(depth, self._pages()[0] * self._pages()[1] // count - 4 * self._pages()[1])
        if depth < 4 * SHORT:
            return 0.0
        (high, most), (low, least) = self._decode(count, depth), self._decode(count, SHORT)
        return max(0.0, (high - low) / (most - least))

    def _pairs(self) -> float:
        """Seconds for each pair of a prompt token and one before its chunk."""
        chunks = self._room // self._batched
        if chunks < 2:
            return 0.0
        chunks = min(chunks, 4)
        slopes = []
        for _ in range(3):
            request = self._request_of(chunks * self._batched, 2)
            times = [self._step() for _ in range(chunks)]
            self._end([request])
            slopes.append((times[-1] - times[0]) / (self._batched * (chunks - 1) * self._batched))
        return max(0.0, median(slopes))

    def _pages(self) -> tuple[int, int]:
        """Pages for all tokens of a sequence, and the tokens of one. States and windows need no more with length."""
        cache = self._llm.loaded.cache
        growing = [i for i, group in enumerate(cache.layout.groups) if group.keeps_all]
        pages = min((cache.available[i] for i in growing), default=1 << 30)
        return pages, cache.page_tokens

    def _request_of(self, prompt_tokens: int, max_tokens: int) -> Generation:
        tokens = self._random.integers(0, self._engine.executor.vocab, prompt_tokens).tolist()
        (request,) = self._engine.generation(tokens, self._sampling, max_tokens=max_tokens)
        request.eos_ids = frozenset()  # it writes as long as it is measured
        self._engine.add([request])
        return request

    def _step(self) -> float:
        begun = self._clock()
        self._engine.step()
        return self._clock() - begun

    def _end(self, requests: list[Generation]) -> None:
        self._engine.cancel(requests)
        while self._engine.step():
            pass


def _powers(most: int) -> list[int]:
    """1, 2, 4 ... and the most itself.

    >>> _powers(6)
    [1, 2, 4, 6]
    """
    return sorted({*(1 << i for i in range(most.bit_length()) if 1 << i <= most), most})
