"""Structs that several OpenAI endpoints share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from ..llm import TokenLogprob
from .bodies import Body
from .errors import invalid_output, openai_body
from .jobs import Finished, Usage
from .runs import Run
from .sampler_fields import SamplerFields
from .sse import event
from .template_input import given

Count = Annotated[int, Meta(ge=1, le=1 << 31)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # -1: any
Stop = Annotated[str, Meta(min_length=1)] | Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=16)]


NOTHING: tuple[Any, ...] = (False, [], {}, "")
# What other servers have and this one has not, with values that have no effect.
NOT_HERE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("structural_tag", "guided_whitespace_pattern", "lora", "adapter", "logits_processors"),
        NOTHING,
    ),
    "tfs_z": (0, 1), "top_a": (0,), "smoothing_factor": (0,), "epsilon_cutoff": (0,), "eta_cutoff": (0,),
    "best_of": (1,),
}  # fmt: skip
MaxTokens = Annotated[int, Meta(ge=-1, le=1 << 31)]  # -1: until the context is full
ThoughtTokens = MaxTokens  # of a thought, until it is ended; -1: any number
StopReason = Literal["stop", "length", "invalid"]
NO_END = 1 << 30  # tokens before the model may end its output: more than any context has


class StreamSettings(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # events are as long as their text


class Sampling(SamplerFields):
    """Options of both completion APIs. Those after `user` are extensions."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = NOT_HERE
    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=1024)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    logit_bias: dict[Annotated[str, Meta(pattern="^[0-9]{1,9}$")], Annotated[float, Meta(ge=-100, le=100)]] | None = (
        None
    )
    stream: bool | None = None
    stream_options: StreamSettings | None = None
    user: str | dict[str, Any] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None  # 0 or -1: all
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None  # the same, as llama.cpp calls it
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None  # prefixes are always kept
    min_tokens: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    stop_token_ids: list[Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]] | None = None
    return_token_ids: bool | None = None
    use_beam_search: bool | None = None  # with `n` beams, as vLLM has it
    beams: Annotated[int, Meta(ge=1, le=1024)] | None = None  # of which the `n` best are returned
    length_penalty: Annotated[float, Meta(ge=-100, le=100)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None  # higher ones are run first
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None

    @property
    def user_name(self) -> str:
        """Who asks; some clients send a record of the user."""
        return str(self.user.get("id", "")) if isinstance(self.user, dict) else self.user or ""

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def options(self) -> dict[str, Any]:
        """The same by the names of `LLM.generate`; what is not given is as the model wants it."""
        repetition = self.repeat_penalty if self.repetition_penalty is None else self.repetition_penalty
        found = given(
            temperature=self.temperature, top_p=self.top_p, presence_penalty=self.presence_penalty, min_p=self.min_p,
            frequency_penalty=self.frequency_penalty, min_tokens=self.min_tokens, stop_token_ids=self.stop_token_ids,
            seed=seed_of(self.seed), repetition_penalty=repetition, stop=self.stop or None,
            top_k=None if self.top_k is None else max(self.top_k, 0),
        )  # fmt: skip
        found |= self.sampler_options() | self._beam_options()
        if self.ignore_eos:
            found["min_tokens"] = NO_END
        if self.logit_bias is not None:
            found["logit_bias"] = {int(token): value for token, value in self.logit_bias.items()}
        return found

    def _beam_options(self) -> dict[str, Any]:
        count = self.beams or ((self.n or 1) if self.use_beam_search else None)
        if count is None:
            return {}
        return {"beams": count, **given(length_penalty=self.length_penalty, early_stopping=self.early_stopping)}


def seed_of(seed: int | None) -> int | None:
    """A seed as `LLM.generate` takes it: none for -1.

    >>> seed_of(-1), seed_of(5), seed_of(-2) == (1 << 63) - 2
    (None, 5, True)
    """
    return None if seed is None or seed == -1 else seed & ((1 << 63) - 1)


def max_tokens_of(count: int | None) -> int | None:
    return None if count == -1 else count


def effort_names(effort: str | None, names: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The names by which chat templates look for the effort of reasoning, beside others.

    >>> effort_names("none"), effort_names("low"), effort_names(None)
    ({'reasoning_effort': 'none', 'enable_thinking': False}, {'reasoning_effort': 'low'}, None)
    """
    if effort is None:
        return names
    thinking = {"enable_thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **thinking, **(names or {})}


def thinking_names(is_enabled: bool | None, names: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The names by which chat templates ask whether to think, beside others.

    >>> thinking_names(False), thinking_names(None)
    ({'enable_thinking': False, 'thinking': False}, None)
    """
    return names if is_enabled is None else {"enable_thinking": is_enabled, "thinking": is_enabled, **(names or {})}


class PromptDetails(msgspec.Struct):
    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int


class UsageInfo(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


def usage_info(usage: Usage) -> UsageInfo:
    return UsageInfo(
        usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, PromptDetails(usage.cached_tokens),
        CompletionDetails(usage.thought_tokens),
    )  # fmt: skip


class OutputError(msgspec.Struct):
    """Why an output is not what was asked for."""

    message: str
    type: str
    param: str | None
    code: str | None


def error_field(end: Finished) -> dict[str, OutputError]:
    """`output_error` as a field, if there is one."""
    found = output_error(end)
    return {} if found is msgspec.UNSET else {"error": found}


def output_error(end: Finished) -> OutputError | msgspec.UnsetType:
    return msgspec.UNSET if end.error is None else OutputError(**openai_body(invalid_output(end.error))["error"])


class ChunkWriter:
    """Events of a streamed completion; both APIs have the same around what each choice holds."""

    def __init__(self, run: Run, body: Sampling, name: str, kind: str) -> None:
        self._base = {"id": name, "object": kind, "created": run.created, "model": run.model}
        self._base["system_fingerprint"] = "fewbit"
        self._has_ids, self._wants_usage = bool(body.return_token_ids), body.wants_usage

    def chunk(
        self, index: int, content: dict[str, Any], reason: str | None = None, logprobs: Any = None, ids: Any = None
    ) -> bytes:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}
        if self._has_ids:
            choice["token_ids"] = ids or []
        return event({**self._base, "choices": [choice], **({"usage": None} if self._wants_usage else {})})

    def usage(self, usage: Usage) -> bytes:
        """The last event, for those who asked for it."""
        return event({**self._base, "choices": [], "usage": usage_info(usage)})


def stop_reason(end: Finished) -> StopReason:
    return "invalid" if end.is_invalid else "length" if end.reason == "length" else "stop"


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


def chat_logprob(found: TokenLogprob) -> ChatLogprob:
    tops = [TopLogprob(one.text, finite(one.logprob), list(one.bytes)) for one in found.top]
    return ChatLogprob(found.text, finite(found.logprob), list(found.bytes), tops)


def finite(logprob: float) -> float:
    """OpenAI writes -9999 for what is out of the question; JSON has no infinity."""
    return max(logprob, -9999.0)
