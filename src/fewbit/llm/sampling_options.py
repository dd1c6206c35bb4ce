"""The options of `LLM.generate`, `LLM.stream` and `LLM.chat`: their types, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, TypedDict, get_type_hints

from ..engine.adapters import Adapter
from ..engine.beam_search import BeamOptions, refuse_beside_beams
from ..engine.constraint import Constraint
from ..engine.request_checks import check_at_least_zero
from ..errors import DtypeError, RequestError
from ..ops.sampling import SamplingParams
from ..validation import to_integer, to_size
from .extra_options import SamplerOptions, SamplerSettings, pop_samplers
from .progress import Progress
from .structure import OutputStructure, pop_structure

_GGUF_KEYS = {  # general.sampling.*: our name, least and most
    "temp": ("temperature", 0.0, 100.0),
    "top_k": ("top_k", 0.0, 1e9),
    "top_p": ("top_p", 0.0, 1.0),
    "min_p": ("min_p", 0.0, 1.0),
    "penalty_repeat": ("repetition_penalty", 0.1, 10.0),
}
NO_BEAMS = (
    "logprobs", "prompt_logprobs", "logit_bias", "constraint", "schema", "regex", "choice", "grammar", "json",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
_REQUEST_OPTIONS = (
    "max_tokens", "min_tokens", "seed", "logprobs", "prompt_logprobs", "logit_bias", "constraint", "namespace",
    "adapter", "priority", "client", "deadline",
)  # fmt: skip
_BEAM_REQUEST = ("max_tokens", "min_tokens", "namespace", "adapter", "embedded", "priority", "client", "deadline")


class PlainOptions(TypedDict, total=False):
    """What is asked of one output, beside `SamplerOptions`."""

    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    seed: int | None
    logit_bias: Mapping[int, float] | None
    schema: Any
    regex: str | None
    choice: Sequence[str] | None
    grammar: Any
    json: bool
    constraint: Callable[[], Constraint] | None
    visible_tokens: Sequence[int]
    namespace: str
    adapter: Adapter
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


class BeamSettings(TypedDict, total=False):
    """Options of beam search."""

    beams: int | None
    length_penalty: float
    early_stopping: bool | Literal["never"]


class StreamOptions(PlainOptions, SamplerOptions, BeamSettings, total=False):
    """The options of `LLM.stream`: `Options` without `n` and `progress`."""


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
        schema: A JSON schema that the output must match, as a dict or JSON text; or a Python type whose instance it
            describes: a pydantic model, a dataclass, a TypedDict, `list[int]`. `Completion.parsed` is the object. Of
            this and the next five options one can be given.
        regex: A regular expression that the output must match as a whole.
        choice: Texts of which the output must be one.
        grammar: A grammar that the output must follow, as text in GBNF or Lark syntax.
        json: The output must be a JSON object. Defaults to False.
        visible_tokens: Control tokens that are part of the text. Others are left out of it.
        constraint: Makes the `Constraint` of an output; see `fewbit.engine.constraint`.
        namespace: Prompts share cached pages only within a namespace.
        adapter: Name of a loaded LoRA adapter, or several with weights: `{"sql": 0.7, "terse": 0.3}`.
        priority: Requests with a higher one are run first. Defaults to 0.
        client: Name of a client. Clients that wait for each other get equal shares.
        deadline: Seconds after which an output ends, complete or not, with the reason "deadline".
        logprobs: Return the log-probability of each token, and of this many of the likeliest tokens in its place.
        prompt_logprobs: The same for the tokens of the prompt, which is then computed whole, whatever the cache holds.
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty: As in
            `SamplingParams`.
        samplers: The order in which samplers run; those that are not listed do not run. Names of them, and functions of
            the logits, a NumPy array, that return logits. Defaults to "penalties", "dry", "top_n_sigma", "top_k",
            "temperature", "typical_p", "top_p", "min_p", "xtc". A function runs between two steps: it must not call the
            model.
        typical_p, top_n_sigma, xtc_probability, xtc_threshold: As in `SamplerChain`.
        dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n: As in `SamplerChain`.
        mirostat, mirostat_tau, mirostat_eta, dynatemp_range, dynatemp_exponent: As in `SamplerChain`.
        dry_sequence_breakers: Texts at which repetitions begin anew. Defaults to line ends, ":", '"' and "*".
        no_repeat_ngram_size: No so many tokens in a row come twice, those of the prompt included. 0: off.
        bad_words: Texts that do not occur in the output, not even within longer words.
        allowed_words: Texts whose tokens alone may be sampled, and those that end the output.
        allowed_token_ids: Token ids that alone may be sampled.
        banned_token_ids: Token ids that are never sampled.
        n: Outputs for each prompt, in `Completion.outputs`. Defaults to 1.
        beams: Search the likeliest outputs with so many beams, and return the `n` best at the end, in a stream too.
            Nothing is sampled: temperature and the like have no effect, and options that change what is likely are
            refused.
        length_penalty: Power of the number of tokens that scores of beams are divided by. Defaults to 1.
        early_stopping: When a search ends: True, as soon as `beams` outputs are complete; False, when it looks as if no
            better one comes; "never", when none can. Defaults to False.
        progress: Show the progress of a batch on standard error, or call a function with (done, total).
    """

    n: int
    progress: Progress


class PromptOptions(TypedDict, total=False):
    """How messages become a prompt: the options of `LLM.count_tokens` and `LLM.chat_prompt`.

    Args:
        tools: What the model may call: Python functions, described by their signatures and docstrings, or dicts as
            OpenAI's clients send them.
        enable_thinking: Whether the model thinks before it answers, if its chat template lets one choose.
        reasoning_effort: How much it thinks, such as "low", if its chat template lets one choose. "none": not at all.
        template: Names that the chat template looks for, such as `{"enable_thinking": False}`.
        trust_content: Special tokens that are spelled in messages count as such. Defaults to False: they are text.
        continue_final_message: The last message is the assistant's, and the answer continues it. Defaults to False.
    """

    tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None
    enable_thinking: bool | None
    reasoning_effort: str | None
    template: Mapping[str, Any] | None
    trust_content: bool
    continue_final_message: bool


class ReplyOptions(TypedDict, total=False):
    """What the answer to a conversation may be: options of `LLM.chat`.

    Args:
        tool_choice: "auto": the model decides whether it calls tools. "required": it must. "none": it may not. Or the
            name of a tool that it must call. Defaults to "auto".
        parallel_tool_calls: There may be several calls. Defaults to True.
        reasoning_budget: Most tokens of a thought, which is ended then. Defaults to no limit.
        truncate: Leave out the oldest messages of a conversation that does not fit into the context with room for an
            answer; `Completion.dropped_messages` is their number. System messages and the last question stay. Defaults
            to False: it is refused.
    """

    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    reasoning_budget: int | None
    truncate: bool


class ChatStreamOptions(StreamOptions, PromptOptions, ReplyOptions, total=False):
    """The options of `LLM.chat` with `stream=True`: those of `LLM.stream`, `PromptOptions` and `ReplyOptions`."""


class ChatOptions(Options, PromptOptions, ReplyOptions, total=False):
    """The options of `LLM.chat`: those of `LLM.generate`, `PromptOptions` and `ReplyOptions`."""


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Options as the engine and the folds take them. The engine checks the numbers."""

    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    n: int
    progress: Progress
    request: dict[str, Any]  # what else `Engine.generation` takes
    params: SamplingParams
    prompt_only: bool  # nothing is written
    structure: OutputStructure | None = None
    visible_tokens: frozenset[int] = frozenset()
    samplers: SamplerSettings | None = None  # beyond `params`
    beams: BeamOptions | None = None

    def for_prompt(self, index: int) -> dict[str, Any]:
        """What `Engine.generation` takes for one of several prompts: output i of a call has the seed `seed + i`."""
        seed = self.request.get("seed")
        if seed is None or not index:
            return self.request
        return {**self.request, "seed": to_integer(seed, "seed") + index * to_integer(self.n, "n")}


def beam_request(given: dict[str, Any]) -> dict[str, Any]:
    """What `Engine.beams` takes of the options of a request."""
    return {name: value for name, value in given.items() if name in _BEAM_REQUEST}


def read_options(options: Options, defaults: SamplingParams | None = None) -> GenerationOptions:
    """Check options. What is not given is sampled by `defaults`.

    >>> read_options({"stop": "END", "temperature": 0}).stop
    ('END',)
    >>> read_options({"temprature": 0})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: unknown option temprature; known options are max_tokens, min_tokens, stop, ...
    """
    rest: dict[str, Any] = {**options}
    check_names(rest, Options)
    stop, ids = _stops(rest.pop("stop", None)), rest.pop("stop_token_ids", None)
    samplers = pop_samplers(rest)
    beams = _pop_beams(rest, samplers)
    n, progress, structure = rest.pop("n", 1), rest.pop("progress", False), pop_structure(rest)
    visible = frozenset(to_list(rest.pop("visible_tokens", ()), "visible_tokens must be a list of token ids"))
    request = {"max_tokens": 256} | {name: rest.pop(name) for name in _REQUEST_OPTIONS if name in rest}
    most = request["max_tokens"]
    prompt_only = most is not None and check_at_least_zero(most, "max_tokens") == 0
    if prompt_only:
        request |= {"max_tokens": 1, "min_tokens": 0}
    stop_ids = () if ids is None else tuple(to_list(ids, "stop_token_ids must be a list of token ids"))
    params = replace(defaults or SamplingParams(), **rest)
    return GenerationOptions(
        stop, stop_ids, n, progress, request, params, prompt_only, structure, visible, samplers, beams
    )


def _pop_beams(options: dict[str, Any], samplers: SamplerSettings | None) -> BeamOptions | None:
    count = options.pop("beams", None)
    given = {name: options.pop(name) for name in ("length_penalty", "early_stopping") if name in options}
    if count is None:
        return None
    refuse_beside_beams({"other samplers": samplers, **{name: options.get(name) for name in NO_BEAMS}})
    number, n = to_size(count, "beams", 1, error=RequestError), options.get("n", 1)
    if isinstance(n, int) and n > number:
        raise RequestError(f"n must be at most the number of beams, {number}, got {n}")
    return BeamOptions(number, **given)


def check_names(options: Mapping[str, Any], kind: type) -> None:
    """Refuse options that a TypedDict does not have."""
    known = get_type_hints(kind)
    if unknown := ", ".join(name for name in options if name not in known):
        raise DtypeError(f"unknown option {unknown}; known options are {', '.join(known)}")


def model_sampling(metadata: Mapping[str, Any], recommended: Mapping[str, float] | None = None) -> SamplingParams:
    """The sampling defaults of a model: from its file, else what its makers recommend, else those of `SamplingParams`.

    >>> model_sampling({"general.sampling.temp": 0.6}, {"temperature": 0.2, "top_p": 0.9}).temperature
    0.6
    """
    found: dict[str, Any] = {**(recommended or {})}
    for key, (name, least, most) in _GGUF_KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, Real) and not isinstance(value, bool):
            number = max(float(value), 0.0)  # -1 is how others write "all", or "the likeliest"
            if least <= number <= most:
                found[name] = int(number) if name == "top_k" else number
    return SamplingParams(**found)


def _stops(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else to_list(stop, "stop must be a str or a list of str")
    for one in stops:
        if not isinstance(one, str) or not one:
            raise DtypeError(f"a stop string must be a str that is not empty, got {one!r}")
    return tuple(stops)


def to_list(values: Any, what: str) -> list[Any]:
    """A list of anything that can be iterated but text, bytes and dicts. Errors begin with `what`."""
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise DtypeError(f"{what}, not {type(values).__name__}")
    return values if isinstance(values, list) else list(values)
