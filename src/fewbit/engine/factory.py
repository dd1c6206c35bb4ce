"""Makes requests, and refuses what an engine cannot serve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Unpack

from ..arrays import Words
from ..devices.batch import Executor
from ..errors import RequestError, TooLong
from ..ops.sampling import SamplingParams
from ..validation import check_type
from .adapters import Adapter, AdapterRegistry
from .beam_search import Beam, BeamGroup, BeamOptions
from .constraint import Constraint, MaskPool
from .embedded import EmbeddedPrompt
from .reading import Embedding, Scoring
from .request import Generation
from .request_checks import check_bias, check_count, check_eos, check_logprobs, check_tokens
from .sampling_extras import SamplingExtras, token_mask
from .scheduling import SchedulingOptions, set_scheduling
from .scores import PositionScores


class RequestFactory:
    """Makes requests for an executor.

    Args:
        executor: What runs them.
        max_cached: Tokens of the longest sequence that the cache holds.
        ctx: Tokens of the longest sequence that the model takes.
        eos_ids: Tokens that end an output, unless a request has its own.
        max_seqs: Outputs of one prompt.
        encoder: Whether the model gives hidden states alone, for a text that runs in one step.
    """

    def __init__(
        self, executor: Executor, max_cached: int, ctx: int, eos_ids: Iterable[int], max_seqs: int, encoder: bool
    ) -> None:
        self.executor, self.is_encoder = executor, encoder
        self.adapters = AdapterRegistry(executor)
        self.eos_ids = frozenset(eos_ids)
        self._ctx, self._max_seqs, self._masks = ctx, max_seqs, MaskPool()
        self.max_length = min(ctx, max_cached)  # tokens of the longest sequence
        if encoder:
            self.max_length = min(self.max_length, executor.max_batched_tokens, executor.max_logits)

    def generation(
        self,
        prompt: Iterable[int],
        params: SamplingParams | None = None,
        *,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        n: int = 1,
        seed: int | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        eos_ids: Iterable[int] | None = None,
        logit_bias: Mapping[int, float] | None = None,
        constraint: Callable[[], Constraint] | None = None,
        extras: SamplingExtras | None = None,
        namespace: str = "",
        adapter: Adapter = None,
        embedded: EmbeddedPrompt | None = None,
        **scheduling: Unpack[SchedulingOptions],
    ) -> list[Generation]:
        """Requests for `n` outputs of one prompt, which is run once for all of them.

        Args:
            prompt: Its tokens.
            params: How tokens are sampled.
            max_tokens: Tokens of an output. None: until the context is full.
            min_tokens: Tokens before which no output ends.
            n: How many outputs.
            seed: That of the first output; output i has `seed + i`. None: a random one.
            logprobs: Likeliest tokens whose log-probabilities are returned for each token of the output.
            prompt_logprobs: The same for the prompt, whose tokens are then run even if the cache has them.
            eos_ids: Tokens that end an output, in the place of the model's.
            logit_bias: What is added to the logits of tokens.
            constraint: Makes a constraint for each output. Its masks are computed in threads.
            extras: Samplers beyond `params`, and tokens that may not come.
            namespace: Requests share cached prompts within one only.
            adapter: The name of an adapter, or names with weights.
            embedded: Parts of the prompt that are no tokens.
            scheduling: When it is run.
        """
        tokens, vocab = self._prompt(prompt), self.executor.vocab
        self._check_embedded(embedded, prompt_logprobs)
        most = self.max_length if max_tokens is None else check_count(max_tokens, "max_tokens")
        least = check_count(min_tokens, "min_tokens", least=0)
        first = None if seed is None else check_count(seed, "seed", least=0)
        scores = self._scores(tokens, prompt_logprobs)
        ends = self.eos_ids if eos_ids is None else check_eos(eos_ids, vocab, least)
        _check_kinds(params, constraint, namespace)
        allowed = None if extras is None else self._allowed(extras, ends, least)
        requests = [
            Generation(
                tokens, params or SamplingParams(), min(len(tokens) + most, self.max_length),
                min_length=len(tokens) + least, eos_ids=ends, seed=None if first is None else first + i,
                num_logprobs=_logprobs(logprobs, vocab), scores=scores, logit_bias=check_bias(logit_bias, vocab),
                masks=self._masks, constraint=None if constraint is None else constraint(), extras=extras,
                allowed=allowed, namespace=namespace, adapter=self.adapters.mix(adapter), embedded=embedded,
            )
            for i in range(check_count(n, "n", self._max_seqs))
        ]  # fmt: skip
        return _joined(requests, scheduling)

    def beams(
        self,
        prompt: Iterable[int],
        options: BeamOptions,
        *,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        eos_ids: Iterable[int] | None = None,
        namespace: str = "",
        adapter: Adapter = None,
        embedded: EmbeddedPrompt | None = None,
        **scheduling: Unpack[SchedulingOptions],
    ) -> list[Beam]:
        """Requests for the outputs of a beam search, the best first. Adding the first adds all of them.

        Args:
            prompt: Its tokens.
            options: How beams are searched.
            max_tokens: Tokens of an output. None: until the context is full.
            min_tokens: Tokens before which no output ends.
            eos_ids: Tokens that end an output, in the place of the model's.
            namespace: Requests share cached prompts within one only.
            adapter: The name of an adapter, or names with weights.
            embedded: Parts of the prompt that are no tokens.
            scheduling: When it is run.
        """
        tokens, vocab = self._prompt(prompt), self.executor.vocab
        if embedded is not None:
            self._check_embedded(embedded, None)
        most = self.max_length if max_tokens is None else check_count(max_tokens, "max_tokens")
        least = check_count(min_tokens, "min_tokens", least=0)
        check_count(options.count, "beams", min(self._max_seqs, self.executor.max_logits))
        ends = self.eos_ids if eos_ids is None else check_eos(eos_ids, vocab, least)
        check_type(namespace, str, "namespace")
        mix = self.adapters.mix(adapter)
        group = BeamGroup(options, ends, min(len(tokens) + most, self.max_length), len(tokens) + least, vocab)
        for _ in range(options.count):
            Beam(tokens, group, masks=self._masks, eos_ids=ends, namespace=namespace, adapter=mix, embedded=embedded)
        group.beams[0].siblings = [*group.beams[1:]]
        set_scheduling(group.beams, scheduling)
        return group.beams

    def scoring(
        self,
        tokens: Iterable[int],
        *,
        first: int = 1,
        namespace: str = "",
        adapter: Adapter = None,
        logprobs: int | None = None,
        **scheduling: Unpack[SchedulingOptions],
    ) -> Scoring:
        """A request for the log-probability of each token from `first` on, and of the `logprobs` likeliest there."""
        self.check_writes()
        most = _logprobs(logprobs, self.executor.vocab)
        text = self._text(tokens, namespace)
        mix = self.adapters.mix(adapter)
        request = Scoring(text, namespace, mix, most, check_count(first, "first", max(1, len(text) - 1)))
        set_scheduling([request], scheduling)
        return request

    def embedding(
        self,
        tokens: Iterable[int],
        *,
        last_only: bool = False,
        namespace: str = "",
        adapter: Adapter = None,
        **scheduling: Unpack[SchedulingOptions],
    ) -> Embedding:
        """A request for the last hidden row of each token, or of the last token alone."""
        text = self._text(tokens, namespace)
        mix = self.adapters.mix(adapter)
        request = Embedding(text, namespace, mix, last_only=last_only and not self.is_encoder)
        set_scheduling([request], scheduling)
        return request

    def check_writes(self) -> None:
        """Refuse to write or score text where the model cannot."""
        if self.is_encoder:
            raise RequestError("the model is an encoder: it makes embeddings and writes no text; try embed")

    def _prompt(self, prompt: Iterable[int]) -> list[int]:
        self.check_writes()
        tokens = check_tokens(prompt, self.executor.vocab)
        if len(tokens) >= self.max_length:
            raise TooLong(f"a prompt of {len(tokens)} tokens leaves no room for an output: {self._room()}",
                          len(tokens), self.max_length)  # fmt: skip
        return tokens

    def _check_embedded(self, embedded: EmbeddedPrompt | None, prompt_logprobs: int | None) -> None:
        if embedded is None:
            return
        embedded.check(self.executor.max_batched_tokens)
        if prompt_logprobs is not None:
            raise RequestError("prompt_logprobs cannot be used together with images: their tokens have no text")

    def _allowed(self, extras: SamplingExtras, ends: frozenset[int], min_tokens: int) -> Words | None:
        if extras.allowed is None:
            return None
        tokens, vocab = {*extras.allowed}, self.executor.vocab
        if not tokens or not 0 <= min(tokens) <= max(tokens) < vocab:
            raise RequestError(f"allowed_token_ids must be tokens from 0 to {vocab - 1}, at least one")
        if min_tokens and ends.issuperset(tokens):
            raise RequestError("min_tokens cannot be kept: every allowed token ends the output")
        return token_mask(tokens, vocab)

    def _scores(self, tokens: list[int], count: int | None) -> PositionScores | None:
        if count is None:
            return None
        most = check_logprobs(count, self.executor.vocab, "prompt_logprobs")
        return PositionScores(len(tokens), num_logprobs=most)

    def _text(self, text: Iterable[int], namespace: str) -> list[int]:
        tokens = check_tokens(text, self.executor.vocab)
        if len(tokens) > self.max_length:
            raise TooLong(f"a text of {len(tokens)} tokens is too long: {self._room()}", len(tokens),
                          self.max_length)  # fmt: skip
        check_type(namespace, str, "namespace")
        return tokens

    def _room(self) -> str:
        what = "context" if self.max_length == self._ctx else "cache"
        return f"the {what} holds {self.max_length} tokens"


def _logprobs(count: int | None, vocab: int) -> int | None:
    return None if count is None else check_logprobs(count, vocab)


def _joined(requests: list[Generation], scheduling: SchedulingOptions) -> list[Generation]:
    """Outputs of one prompt, which is run by the first of them."""
    requests[0].siblings = requests[1:]
    set_scheduling(requests, scheduling)
    return requests


def _check_kinds(params: object, constraint: object, namespace: object) -> None:
    check_type(namespace, str, "namespace")
    check_type(params, (SamplingParams, NoneType), "params")
    check_type(constraint, (Callable, NoneType), "constraint")  # type: ignore[arg-type]
