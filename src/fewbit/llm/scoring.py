"""The log-probabilities of the tokens of texts, as methods of an `LLM`."""

from __future__ import annotations

from typing import overload

from ..arrays import Floats
from ..engine.adapters import Adapter
from ..engine.worker import Worker
from ..text.tokenizer import Tokenizer
from .callers import BlockingCaller, Caller, LoopCaller, drive, run
from .completion import TokenLogprob
from .logprobs import scored_tokens
from .prompts import PromptEncoder
from .score import Prefix, Scored, ScoredText, ScoredTexts, scorings


class ScoringMethods:
    """What an `LLM` tells of a text token by token."""

    tokenizer: Tokenizer
    _worker: Worker
    _prompts: PromptEncoder

    @overload
    def score(
        self, text: ScoredText, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> Floats: ...
    @overload
    def score(
        self, text: ScoredTexts, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> list[Floats]: ...
    def score(
        self, text: Scored, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> Floats | list[Floats]:
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
            adapter: A loaded LoRA adapter, or several with weights.
        """
        return drive(self._score(BlockingCaller(), text, prefix, namespace, adapter))

    @overload
    async def ascore(
        self, text: ScoredText, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> Floats: ...
    @overload
    async def ascore(
        self, text: ScoredTexts, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> list[Floats]: ...
    async def ascore(
        self, text: Scored, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> Floats | list[Floats]:
        """`score` that does not block the event loop."""
        return await self._score(LoopCaller(), text, prefix, namespace, adapter)

    @overload
    def token_logprobs(
        self, text: ScoredText, top: int = 0, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> list[TokenLogprob]: ...
    @overload
    def token_logprobs(
        self, text: ScoredTexts, top: int = 0, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> list[list[TokenLogprob]]: ...
    def token_logprobs(
        self, text: Scored, top: int = 0, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> list[TokenLogprob] | list[list[TokenLogprob]]:
        """`score` with the tokens themselves, and the likeliest tokens in the place of each.

        Args:
            text: Text or token ids, or a list of them.
            top: How many of the likeliest tokens to list at each position.
            prefix: What comes before each text and is not scored.
            namespace: Requests share cached prefixes within one namespace only.
            adapter: A loaded LoRA adapter, or several with weights.
        """
        return drive(self._token_logprobs(BlockingCaller(), text, top, prefix, namespace, adapter))

    @overload
    async def atoken_logprobs(
        self, text: ScoredText, top: int = 0, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> list[TokenLogprob]: ...
    @overload
    async def atoken_logprobs(
        self, text: ScoredTexts, top: int = 0, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> list[list[TokenLogprob]]: ...
    async def atoken_logprobs(
        self, text: Scored, top: int = 0, prefix: Prefix = None, *, namespace: str = "", adapter: Adapter = None
    ) -> list[TokenLogprob] | list[list[TokenLogprob]]:
        """`token_logprobs` that does not block the event loop."""
        return await self._token_logprobs(LoopCaller(), text, top, prefix, namespace, adapter)

    async def _score(
        self, caller: Caller, text: Scored, prefix: Prefix, namespace: str, adapter: Adapter
    ) -> Floats | list[Floats]:
        requests, several = await caller.compute(
            lambda: scorings(self._prompts, text, prefix, None, namespace, adapter)
        )
        await run(self._worker, requests, caller)
        values = [request.scores.values for request in requests]
        return values if several else values[0]

    async def _token_logprobs(
        self, caller: Caller, text: Scored, top: int, prefix: Prefix, namespace: str, adapter: Adapter
    ) -> list[TokenLogprob] | list[list[TokenLogprob]]:
        requests, several = await caller.compute(lambda: scorings(self._prompts, text, prefix, top, namespace, adapter))
        await run(self._worker, requests, caller)
        found = await caller.compute(
            lambda: [scored_tokens(self.tokenizer, request.tokens, request.scores) for request in requests]
        )
        return found if several else found[0]
