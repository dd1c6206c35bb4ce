"""What can be asked of a model, and how it is asked: prompts, messages and options, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypedDict, get_type_hints

from .engine.request import Constraint
from .errors import DtypeError, RequestError
from .ops.sampling import SamplingParams

_OF_REQUEST = "max_tokens", "min_tokens", "seed", "logprobs", "logit_bias", "constraint", "namespace", "adapter"

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class OneOutput(TypedDict, total=False):
    """The options of `LLM.generate`, `stream` and `chat`. From `temperature` on they are those of `SamplingParams`."""

    max_tokens: int | None  # 256; None: until the context is full
    min_tokens: int  # 0: tokens before the model may end its output
    stop: str | Sequence[str] | None  # the output ends before the first of these
    stop_token_ids: Sequence[int] | None  # tokens that end the output, beside the model's own
    seed: int | None  # the same seed gives the same output
    logit_bias: Mapping[int, float] | None  # what is added to the logits of tokens
    constraint: Callable[[], Constraint] | None  # what the output must look like: see `fewbit.engine.request`
    namespace: str  # prompts share what was computed within one only
    adapter: str | None
    logprobs: int | None  # tell how likely each token was, and so many of the likeliest ones
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float


class Options(OneOutput, total=False):
    """The same for several outputs."""

    n: int  # outputs of each prompt


@dataclass(frozen=True, slots=True)
class Settings:
    """Options that were read; numbers are checked by the engine."""

    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    n: int
    request: dict[str, Any]  # the rest of what `Engine.generation` takes
    params: SamplingParams


def read_options(options: Options) -> Settings:
    """
    >>> read_options({"stop": "END", "temperature": 0}).stop
    ('END',)
    >>> read_options({"temprature": 0})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: there is no option temprature; there are max_tokens, min_tokens, stop, ...
    """
    given: dict[str, Any] = {**options}
    known = get_type_hints(Options)
    unknown = ", ".join(name for name in given if name not in known)
    if unknown:
        raise DtypeError(f"there is no option {unknown}; there are {', '.join(known)}")
    stop, ids, n = _stops(given.pop("stop", None)), given.pop("stop_token_ids", None), given.pop("n", 1)
    request = {"max_tokens": 256} | {name: given.pop(name) for name in _OF_REQUEST if name in given}
    return Settings(
        stop,
        () if ids is None else tuple(_to_list(ids, "stop_token_ids is a list of token ids")),
        n,
        request,
        SamplingParams(**given),
    )


def split_prompts(prompt: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts, and whether several could have been given.

    >>> split_prompts("Once"), split_prompts([1, 2]), split_prompts(["Once", [1, 2]])
    ((['Once'], False), ([[1, 2]], False), (['Once', [1, 2]], True))
    """
    if isinstance(prompt, str):
        return [prompt], False
    items = _to_list(prompt, "a prompt is a str or token ids, or a list of such prompts")
    if not items:
        raise RequestError("the prompt is empty: it has no tokens")
    if isinstance(items[0], Integral):
        return [items], False
    return [one if isinstance(one, str) else _to_list(one, "a prompt is a str or token ids") for one in items], True


def check_messages(messages: Sequence[Message]) -> list[Message]:
    """Messages as chat templates expect them: each has a role, and what was said."""
    items = _to_list(messages, "messages are a list of dicts with role and content")
    if not items:
        raise RequestError("there are no messages")
    for number, message in enumerate(items):
        _check_message(message, f"message {number}")
    return items


def check_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    if tools is None:
        return None
    items = _to_list(tools, "tools are a list of dicts")
    for number, tool in enumerate(items):
        if not isinstance(tool, Mapping):
            raise DtypeError(f"tools are a list of dicts, number {number} is {type(tool).__name__}")
    return items


def _check_message(message: Any, which: str) -> None:
    if not isinstance(message, Mapping):
        raise DtypeError(f"{which} is a dict with role and content, not {type(message).__name__}")
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise RequestError(f"{which} has a role, such as 'user'; its keys are {', '.join(map(str, message)) or 'none'}")
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise RequestError(f"{which} has no content")
    if not isinstance(content, str | list | tuple | None):
        raise DtypeError(f"the content of {which} is a str or a list of parts, not {type(content).__name__}")


def _stops(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else _to_list(stop, "stop is a str or a list of them")
    for one in stops:
        if not isinstance(one, str) or not one:
            raise DtypeError(f"stop strings are str and not empty, {one!r} was given")
    return tuple(stops)


def _to_list(values: Any, what: str) -> list[Any]:
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise DtypeError(f"{what}, not {type(values).__name__}")
    return values if isinstance(values, list) else list(values)
