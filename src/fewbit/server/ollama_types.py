"""What Ollama's clients send, and what of it is handed to the model."""

from __future__ import annotations

import re
from math import inf
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .bodies import Body
from .errors import ApiError, unsupported
from .images import image_part
from .openai_types import ChatLogprob, Seed, Share, Stop, effort_names, seed_of, thinking_names
from .output_formats import OutputFormat, Schema
from .sampler_fields import mirostat_version, typical
from .template_input import function_call, function_tool, given
from .tools import Tools

KeepAlive = float | Annotated[str, Meta(pattern=r"^-?([0-9]+|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$")]
MAX_KEEP_SECONDS = 100 * 365 * 24 * 3600.0  # what is longer is for ever
DEFAULT_LAST_N = 64  # Ollama's `repeat_last_n`, which clients send without being asked
Penalty = Annotated[float, Meta(ge=-100, le=100)]


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")


def keep_seconds(given: float | str) -> float:
    """How long a model is kept that nobody uses. What is below 0 means: as long as it can be.

    >>> keep_seconds(0), keep_seconds("1h30m"), keep_seconds("300"), keep_seconds("-1")
    (0.0, 5400.0, 300.0, inf)
    """
    text = str(given)
    if text.startswith("-"):
        return inf
    parts = _DURATION.findall(text) if isinstance(given, str) else []
    found = sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float(text)
    return found if found < MAX_KEEP_SECONDS else inf


class OllamaOptions(Body):
    """Those after `mirostat_eta` say where and how fast a model runs, or are refused in `check`."""

    num_predict: Annotated[int, Meta(ge=-2, le=1 << 31)] | None = None  # below 1: until the context is full
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None  # 0 or -1: all
    top_p: Share | None = None
    min_p: Share | None = None
    seed: Seed | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop: Stop | None = None
    typical_p: Share | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: Annotated[float, Meta(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0, le=100)] | None = None
    num_ctx: Annotated[int, Meta(ge=0)] | None = None  # 0, or more than the model's: the model's
    num_keep: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    repeat_last_n: int | None = None
    tfs_z: float | None = None
    penalize_newline: bool | None = None

    def check(self) -> None:
        """Refuse what would change the output and cannot be done."""
        for name, neutral in (("tfs_z", 1), ("penalize_newline", True)):
            if getattr(self, name) not in (None, neutral):
                raise unsupported(f"options.{name}", "leave it out")
        mirostat_version(self.mirostat, "options.mirostat")
        if self.repeat_last_n not in (None, -1, 0, DEFAULT_LAST_N) and self._has_penalties:
            raise unsupported("options.repeat_last_n", "penalties look at the whole text; leave it out, or use -1 or 0")

    @property
    def _has_penalties(self) -> bool:
        return (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) != (None, None, None)

    def ignored(self, ctx: int) -> list[str]:
        """Options that have no effect, or less than they ask for, with a context of so many tokens."""
        found = ["options.num_ctx"] if (self.num_ctx or 0) > ctx else []
        if self.repeat_last_n == DEFAULT_LAST_N and self._has_penalties:
            found.append("options.repeat_last_n")
        return found

    def generate(self) -> dict[str, Any]:
        """The same by the names of `LLM.generate`; what is not given is as the model wants it."""
        self.check()
        most = self.num_predict if self.num_predict is not None and self.num_predict > 0 else None
        found = given(
            temperature=self.temperature, top_k=None if self.top_k is None else max(self.top_k, 0), top_p=self.top_p,
            min_p=self.min_p, seed=seed_of(self.seed), repetition_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty, frequency_penalty=self.frequency_penalty, stop=self.stop or None,
            typical_p=typical(self.typical_p), mirostat=self.mirostat, mirostat_tau=self.mirostat_tau,
            mirostat_eta=self.mirostat_eta,
        )  # fmt: skip
        if self.repeat_last_n == 0:
            found |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        return {"max_tokens": most, **found}


class Asked(Body):
    """What `/api/chat` and `/api/generate` share."""

    model: str
    stream: bool = True
    options: OllamaOptions | None = None
    format: Schema | None = None  # "json" or a schema
    keep_alive: KeepAlive | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncate: bool | None = None  # None: true
    shift: bool | None = None  # the output ends when the context is full

    def check(self) -> None:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs", "invalid_request")

    def output(self) -> OutputFormat | None:
        if self.format is None or self.format in ("", {}):
            return None
        if self.format == "json":
            return OutputFormat("json", field="format")
        return OutputFormat("schema", self.format, "format")

    def given(self) -> OllamaOptions:
        return self.options or OllamaOptions()

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def template_names(self) -> dict[str, Any] | None:
        if isinstance(self.think, str):
            return effort_names(self.think or None)
        return thinking_names(self.think)

    @property
    def unloads(self) -> bool:
        return self.keep_alive is not None and keep_seconds(self.keep_alive) == 0


class OllamaCalled(Body):
    name: str
    arguments: dict[str, Any]
    index: int | None = None
    description: str | None = None


class OllamaCall(Body):
    function: OllamaCalled
    id: str | None = None
    type: str | None = None


class OllamaMessage(Body):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaFunction(Body):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(Body):
    function: OllamaFunction
    type: Literal["function"] = "function"


class OllamaChatRequest(Asked, kw_only=True):
    messages: list[OllamaMessage] = msgspec.field(default_factory=list)
    tools: Annotated[list[OllamaTool], Meta(max_length=128)] | None = None


class OllamaGenerateRequest(Asked, kw_only=True):
    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    context: list[Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]] | None = None
    suffix: str | None = None
    template: str | None = None
    images: list[Any] | None = None

    def check(self) -> None:
        Asked.check(self)
        if self.template:
            raise unsupported("template", "leave it out")
        if self.images and (self.raw or self.suffix or self.context):
            raise unsupported("images", "they go with a prompt that the chat template writes")
        if self.suffix and (self.system or self.context):
            raise ApiError(400, "suffix goes with a prompt alone: no system, no context", "suffix", "invalid_request")
        if self.raw and (self.system or self.context):
            raise ApiError(400, "raw takes the prompt as it is: no system, no context", "raw", "invalid_request")


class OllamaCallOut(msgspec.Struct):
    id: str
    function: OllamaCalled


class OllamaAnswer(msgspec.Struct):
    content: str
    role: Literal["assistant"] = "assistant"
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[OllamaCallOut] | msgspec.UnsetType = msgspec.UNSET


class OllamaRecord(msgspec.Struct):
    """A line of a stream, or a whole answer. Durations are in nanoseconds."""

    model: str
    created_at: str
    done: bool
    message: OllamaAnswer | msgspec.UnsetType = msgspec.UNSET
    response: str | msgspec.UnsetType = msgspec.UNSET
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[ChatLogprob] | msgspec.UnsetType = msgspec.UNSET
    done_reason: str | msgspec.UnsetType = msgspec.UNSET
    context: list[int] | msgspec.UnsetType = msgspec.UNSET
    total_duration: int | msgspec.UnsetType = msgspec.UNSET
    load_duration: int | msgspec.UnsetType = msgspec.UNSET
    prompt_eval_count: int | msgspec.UnsetType = msgspec.UNSET
    prompt_eval_duration: int | msgspec.UnsetType = msgspec.UNSET
    eval_count: int | msgspec.UnsetType = msgspec.UNSET
    eval_duration: int | msgspec.UnsetType = msgspec.UNSET


def template_messages(messages: list[OllamaMessage]) -> list[dict[str, Any]]:
    """Messages as `LLM.chat` takes them."""
    return [_template_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def with_images(text: str | None, images: list[Any] | None, where: str) -> Any:
    """The content of a message: its images stand before its text."""
    if not images:
        return text
    parts = [image_part(one, f"{where}.images[{number}]", is_url=False) for number, one in enumerate(images)]
    return [*parts, text] if text else parts


def read_tools(tools: list[OllamaTool] | None) -> Tools:
    """Tools as chat templates expect them."""
    functions = [tool.function for tool in tools or ()]
    return Tools([function_tool(one.name, one.description, one.parameters) for one in functions])


def _template_message(message: OllamaMessage, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": with_images(message.content, message.images, where)}
    if message.content is None and not message.tool_calls and not message.images:
        raise ApiError(400, f"{where} has no content", f"{where}.content", "invalid_request")
    if message.role == "tool" and message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if message.tool_name is not None:
        found["name"] = message.tool_name
    if message.role == "assistant" and message.thinking:
        found["reasoning_content"] = message.thinking
    if message.tool_calls:
        found["tool_calls"] = [
            function_call(call.id or f"call_{number}", call.function.name, call.function.arguments)
            for number, call in enumerate(message.tool_calls)
        ]
    return found
