"""Prompts, messages and options: their types, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, TypedDict, cast, get_type_hints

from ..engine.request import Constraint
from ..engine.validation import check_at_least_zero
from ..errors import DtypeError, RequestError
from ..ops.sampling import SamplingParams
from ..validation import to_flag, to_integer

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
Messages = Sequence[Message]


class StreamOptions(TypedDict, total=False):
    """The options of `LLM.stream`: `Options` without `n`."""

    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    seed: int | None
    logit_bias: Mapping[int, float] | None
    constraint: Callable[[], Constraint] | None
    namespace: str
    adapter: str | None
    priority: int
    client: str
    deadline: float | None
    logprobs: int | None
    prompt_logprobs: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float


class Options(StreamOptions, total=False):
    """The options of `LLM.generate`.

    Sampling options that are not given are those of `LLM.sampling`: what the model's file or its makers recommend.

    Args:
        max_tokens: Most tokens of an output. Defaults to 256. None: until the context is full. 0: the prompt is
            computed and cached, and nothing is written.
        min_tokens: Tokens before the model may end its output. Defaults to 0.
        stop: A string, or several. The output ends before the first that occurs in it.
        stop_token_ids: Tokens that end the output, in addition to the model's own.
        seed: Output i of a call is sampled with the seed `seed + i`, counted over all prompts.
        logit_bias: A number to add to the logit of a token, by token id.
        constraint: Makes the `Constraint` of an output, such as a grammar; see `fewbit.engine.request`.
        namespace: Prompts share cached pages only within a namespace.
        adapter: Name of an adapter that was loaded with the model.
        priority: Requests with a higher one are run first. Defaults to 0.
        client: Name of a client. Clients that wait for each other get equal shares.
        deadline: Seconds after which an output ends, complete or not, with the reason "deadline".
        logprobs: Return the log-probability of each token, and of this many of the likeliest tokens in its place.
        prompt_logprobs: The same for the tokens of the prompt, which is then computed whole, whatever the cache holds.
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty: As in
            `SamplingParams`.
        n: Outputs for each prompt, in `Completion.outputs`. Defaults to 1.
    """

    n: int


class PromptOptions(TypedDict, total=False):
    """How messages become a prompt: the options of `LLM.count_tokens` and `LLM.chat_prompt`.

    Args:
        tools: Functions that the model may call, as OpenAI's clients describe them.
        template: Names that the chat template looks for, such as `{"enable_thinking": False}`.
        trust_content: Special tokens that are spelled in messages count as such. Defaults to False: they are text.
        continue_final_message: The last message is the assistant's, and the answer continues it. Defaults to False.
    """

    tools: Sequence[Mapping[str, Any]] | None
    template: Mapping[str, Any] | None
    trust_content: bool
    continue_final_message: bool


class ChatStreamOptions(StreamOptions, PromptOptions, total=False):
    """The options of `LLM.chat` with `stream=True`: those of `LLM.stream` and `PromptOptions`."""


class ChatOptions(Options, PromptOptions, total=False):
    """The options of `LLM.chat`: those of `LLM.generate` and `PromptOptions`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Options in the form that the engine takes them; it checks the numbers."""

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
    fewbit.errors.DtypeError: unknown option temprature; known options are max_tokens, min_tokens, stop, ...
    """
    given: dict[str, Any] = {**options}
    known = get_type_hints(Options)
    unknown = ", ".join(name for name in given if name not in known)
    if unknown:
        raise DtypeError(f"unknown option {unknown}; known options are {', '.join(known)}")
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


def split_chat_options(options: ChatOptions | PromptOptions) -> tuple[dict[str, Any], Options]:
    """The arguments of `Chat.prompt`, checked, and the other options.

    >>> of_prompt, rest = split_chat_options({"template": {"enable_thinking": False}, "seed": 1})
    >>> of_prompt["names"], rest
    ({'enable_thinking': False}, {'seed': 1})
    """
    rest: dict[str, Any] = {**options}
    of_prompt = {
        "tools": check_tools(rest.pop("tools", None)),
        "names": _check_names(rest.pop("template", None)),
        "trust_content": to_flag(rest.pop("trust_content", False), "trust_content"),
        "continue_final": to_flag(rest.pop("continue_final_message", False), "continue_final_message"),
    }
    return of_prompt, cast(Options, rest)


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


def split_conversations(messages: Messages | Sequence[Messages]) -> tuple[list[list[Message]], bool]:
    """The conversations, checked, and whether several could have been given.

    >>> hi = {"role": "user", "content": "hi"}
    >>> split_conversations([hi])[1], split_conversations([[hi], [hi]])[1]
    (False, True)
    """
    items = _to_list(messages, "messages must be a list of dicts with role and content")
    if not items or not isinstance(items[0], list | tuple):
        return [check_messages(items)], False
    return [check_messages(one, f" of conversation {number}") for number, one in enumerate(items)], True


def check_messages(messages: Messages, where: str = "") -> list[Message]:
    """Messages as chat templates expect them: each has a role, and a content."""
    items = _to_list(messages, f"messages{where} must be a list of dicts with role and content")
    if not items:
        raise RequestError(f"messages{where} must not be empty")
    for number, message in enumerate(items):
        _check_message(message, f"message {number}{where}")
    return items


def check_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    if tools is None:
        return None
    items = _to_list(tools, "tools must be a list of dicts")
    for number, tool in enumerate(items):
        if not isinstance(tool, Mapping):
            raise DtypeError(f"tools must be a list of dicts, got {type(tool).__name__} at {number}")
    return items


def _check_names(names: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What a chat template is told beside messages and tools."""
    if names is not None and (not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names)):
        raise DtypeError(f'template must be a dict such as {{"enable_thinking": False}}, got {names!r}')
    return names or {}


def _check_message(message: Any, which: str) -> None:
    if not isinstance(message, Mapping):
        raise DtypeError(f"{which} must be a dict with role and content, not {type(message).__name__}")
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise RequestError(
            f"{which} must have a role, such as 'user'; its keys are {', '.join(map(str, message)) or 'none'}"
        )
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise RequestError(f"{which} must have a content")
    if not isinstance(content, str | list | tuple | None):
        raise DtypeError(f"the content of {which} must be a str or a list of parts, not {type(content).__name__}")


def _stops(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else _to_list(stop, "stop must be a str or a list of str")
    for one in stops:
        if not isinstance(one, str) or not one:
            raise DtypeError(f"a stop string must be a str that is not empty, got {one!r}")
    return tuple(stops)


def _to_list(values: Any, what: str) -> list[Any]:
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise DtypeError(f"{what}, not {type(values).__name__}")
    return values if isinstance(values, list) else list(values)
