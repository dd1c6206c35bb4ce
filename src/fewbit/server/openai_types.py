"""Structs that several OpenAI endpoints share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..completion import TokenLogprob
from .bodies import Body
from .jobs import Usage

Count = Annotated[int, Meta(ge=1, le=1 << 31)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Stop = Annotated[str, Meta(min_length=1)] | Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=16)]


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Sampling(Body):
    """Options of both completion APIs. Those after `user` are extensions."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=1024)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    stop: Stop | None = None
    logit_bias: dict[Annotated[str, Meta(pattern="^[0-9]{1,9}$")], Annotated[float, Meta(ge=-100, le=100)]] | None = (
        None
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    top_k: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    stop_token_ids: list[Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]] | None = None
    return_token_ids: bool | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None  # higher ones are run first
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def options(self) -> dict[str, Any]:
        """The same by the names of `LLM.generate`; what is not given is as the model wants it."""
        names = (
            "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "top_k", "min_p",
            "repetition_penalty", "min_tokens", "stop_token_ids",
        )  # fmt: skip
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.logit_bias is not None:
            found["logit_bias"] = {int(token): value for token, value in self.logit_bias.items()}
        return found


class PromptDetails(msgspec.Struct):
    cached_tokens: int


class UsageInfo(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_info(usage: Usage) -> UsageInfo:
    return UsageInfo(
        usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, PromptDetails(usage.cached_tokens)
    )


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


def chat_logprob(of: TokenLogprob) -> ChatLogprob:
    tops = [TopLogprob(one.text, finite(one.logprob), list(one.bytes)) for one in of.top]
    return ChatLogprob(of.text, finite(of.logprob), list(of.bytes), tops)


def finite(logprob: float) -> float:
    """OpenAI writes -9999 for what is out of the question; JSON has no infinity."""
    return max(logprob, -9999.0)
