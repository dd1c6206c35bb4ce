"""What can be asked of a model, and how it is asked: prompts, messages and options, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, TypedDict, cast, get_type_hints

from .engine.request import Constraint
from .engine.validation import check_at_least_zero
from .errors import DtypeError, RequestError
from .ops.sampling import SamplingParams
from .validation import to_integer

_SAMPLING_KEYS = {  # of GGUF: our name, least and most
    "temp": ("temperature", 0.0, 100.0),
    "top_k": ("top_k", 0.0, 1e9),
    "top_p": ("top_p", 0.0, 1.0),
    "min_p": ("min_p", 0.0, 1.0),
    "penalty_repeat": ("repetition_penalty", 0.1, 10.0),
}
_OF_REQUEST = (
    "max_tokens", "min_tokens", "seed", "logprobs", "prompt_logprobs", "logit_bias", "constraint", "namespace",
    "adapter", "priority", "client", "deadline",
)  # fmt: skip

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class OneOutput(TypedDict, total=False):
    """The options of `LLM.generate`, `stream` and `chat`. From `temperature` on they are those of `SamplingParams`."""

    max_tokens: int | None  # 256; None: until the context is full; 0: the prompt is run, nothing is written
    min_tokens: int  # 0: tokens before the model may end its output
    stop: str | Sequence[str] | None  # the output ends before the first of these
    stop_token_ids: Sequence[int] | None  # tokens that end the output, beside the model's own
    seed: int | None  # of output i: `seed + i`; the same gives the same alone, with `batch_invariant` in any batch
    logit_bias: Mapping[int, float] | None  # what is added to the logits of tokens
    constraint: Callable[[], Constraint] | None  # what the output must look like: see `fewbit.engine.request`
    namespace: str  # prompts share what was computed within one only
    adapter: str | None
    priority: int  # 0: higher ones are run first
    client: str  # clients that wait for each other get the same number of tokens
    deadline: float | None  # seconds: what is not complete by then ends with the reason "deadline"
    logprobs: int | None  # tell how likely each token was, and so many of the likeliest ones
    prompt_logprobs: int | None  # the same for the prompt, all of which is run then, whatever the cache has
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


class PromptOptions(TypedDict, total=False):
    """How messages become a prompt: the options of `LLM.count_tokens`."""

    tools: Sequence[Mapping[str, Any]] | None  # functions that the model may call, as OpenAI's clients describe them
    template: Mapping[str, Any] | None  # names that the template looks for, such as {"enable_thinking": False}
    trust_content: bool  # special tokens that messages spell count


class OneAnswer(OneOutput, PromptOptions, total=False):
    """The options of `LLM.chat`."""


class Answers(Options, OneAnswer, total=False):
    """The same for several answers."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Options that were read; numbers are checked by the engine."""

    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    n: int
    request: dict[str, Any]  # the rest of what `Engine.generation` takes
    params: SamplingParams
    prompt_only: bool = False  # the prompt is run, nothing is written

    def of_prompt(self, number: int) -> dict[str, Any]:
        """What `Engine.generation` takes for one of several prompts: output i of a call has the seed `seed + i`."""
        seed = self.request.get("seed")
        if seed is None or not number:
            return self.request
        return {**self.request, "seed": to_integer(seed, "seed") + number * to_integer(self.n, "n")}


def read_options(options: Options, defaults: SamplingParams | None = None) -> Settings:
    """Options, checked; what is not given is sampled by `defaults`.

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
    most = request["max_tokens"]
    prompt_only = most is not None and check_at_least_zero(most, "max_tokens") == 0
    if prompt_only:
        request |= {"max_tokens": 1, "min_tokens": 0}
    return Settings(
        stop,
        () if ids is None else tuple(_to_list(ids, "stop_token_ids must be a list of token ids")),
        n,
        request,
        replace(defaults or SamplingParams(), **given),
        prompt_only,
    )


def split_chat_options(options: Answers | OneAnswer | PromptOptions) -> tuple[dict[str, Any], Options]:
    """What the prompt of a chat is made by, checked, and the rest.

    >>> split_chat_options({"template": {"enable_thinking": False}, "seed": 1})
    ({'tools': None, 'names': {'enable_thinking': False}, 'trust_content': False}, {'seed': 1})
    """
    rest: dict[str, Any] = {**options}
    tools, names = check_tools(rest.pop("tools", None)), _check_names(rest.pop("template", None))
    trust = bool(rest.pop("trust_content", False))
    return {"tools": tools, "names": names, "trust_content": trust}, cast(Options, rest)


def model_sampling(metadata: Mapping[str, Any], recommended: Mapping[str, float] | None = None) -> SamplingParams:
    """How a model is sampled if nobody says: as its file says, else as its makers recommend, else as usual here.

    >>> model_sampling({"general.sampling.temp": 0.6}, {"temperature": 0.2, "top_p": 0.9}).temperature
    0.6
    """
    found: dict[str, Any] = {**(recommended or {})}
    for key, (name, least, most) in _SAMPLING_KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, Real) and not isinstance(value, bool):
            number = max(float(value), 0.0)  # -1 is how others write "all", or "the likeliest"
            if least <= number <= most:
                found[name] = int(number) if name == "top_k" else number
    return SamplingParams(**found)


def split_prompts(prompt: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts, and whether several could have been given.

    >>> split_prompts("Once"), split_prompts([1, 2]), split_prompts(["Once", [1, 2]])
    ((['Once'], False), ([[1, 2]], False), (['Once', [1, 2]], True))
    """
    if isinstance(prompt, str):
        return [prompt], False
    items = _to_list(prompt, "a prompt must be a str or token ids, or a list of such prompts")
    if not items:
        raise RequestError("the prompt is empty: it has no tokens")
    if isinstance(items[0], Integral):
        return [items], False
    return [
        one if isinstance(one, str) else _to_list(one, "a prompt must be a str or token ids") for one in items
    ], True


def check_messages(messages: Sequence[Message]) -> list[Message]:
    """Messages as chat templates expect them: each has a role, and what was said."""
    items = _to_list(messages, "messages must be a list of dicts with role and content")
    if not items:
        raise RequestError("there are no messages")
    for number, message in enumerate(items):
        _check_message(message, f"message {number}")
    return items


def check_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    if tools is None:
        return None
    items = _to_list(tools, "tools must be a list of dicts")
    for number, tool in enumerate(items):
        if not isinstance(tool, Mapping):
            raise DtypeError(f"tools must be a list of dicts, number {number} is {type(tool).__name__}")
    return items


def _check_names(names: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What a chat template is told beside messages and tools."""
    if names is not None and (not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names)):
        raise DtypeError(f'template must be a dict such as {{"enable_thinking": False}}, not {names!r}')
    return names or {}


def _check_message(message: Any, which: str) -> None:
    if not isinstance(message, Mapping):
        raise DtypeError(f"{which} must be a dict with role and content, not {type(message).__name__}")
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise RequestError(
            f"{which} needs a role, such as 'user'; its keys are {', '.join(map(str, message)) or 'none'}"
        )
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise RequestError(f"{which} has no content")
    if not isinstance(content, str | list | tuple | None):
        raise DtypeError(f"the content of {which} must be a str or a list of parts, not {type(content).__name__}")


def _stops(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else _to_list(stop, "stop must be a str or a list of them")
    for one in stops:
        if not isinstance(one, str) or not one:
            raise DtypeError(f"stop strings must be str and not empty, {one!r} was given")
    return tuple(stops)


def _to_list(values: Any, what: str) -> list[Any]:
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise DtypeError(f"{what}, not {type(values).__name__}")
    return values if isinstance(values, list) else list(values)
