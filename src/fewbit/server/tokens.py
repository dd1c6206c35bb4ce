"""`POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`, as evaluation harnesses call them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from ..errors import FewbitError, TooLong
from ..llm import LLM
from .backend import Backend
from .bodies import Body, JsonResponse, read
from .errors import ApiError, from_fewbit
from .images import allow_urls
from .openai_messages import Message, Tool, read_tools, template_messages
from .prompts import ChatInput, chat_prompt, count_tokens
from .runs import held, rules_of
from .state import state_of
from .text_work import check_chars, max_chars
from .waiting import asker_of, unless_gone

T = TypeVar("T")


class TokenizeRequest(Body):
    """A `prompt`, or `messages` as the chat template writes them."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool = True  # to a prompt: those that the model wants around it
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Tokenized(msgspec.Struct, omit_defaults=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Body):
    tokens: list[Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]]
    model: str | None = None


class Detokenized(msgspec.Struct):
    prompt: str


class TokenizerInfo(msgspec.Struct):
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None
    vocab_size: int


async def tokenize(request: Request) -> Response:
    body = await read(request, TokenizeRequest)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either prompt or messages", "prompt", "invalid_request")
    return JsonResponse(await with_model(request, body.model, _tokenized, body, rules_of(request)))


async def detokenize(request: Request) -> Response:
    body = await read(request, DetokenizeRequest)
    return JsonResponse(Detokenized(await with_model(request, body.model, _detokenized, body.tokens)))


async def tokenizer_info(request: Request) -> Response:
    """What is known of a model that is loaded: a GET loads none, since any web page can make a browser send one."""
    facts = loaded_model(request)[1].facts
    eos = facts.eos_token
    return JsonResponse(TokenizerInfo(facts.bos_token, eos, eos, facts.chat_template, facts.vocab_size))


def loaded_model(request: Request) -> tuple[str, Backend]:
    """The model that a GET asks about, and its name."""
    entry = state_of(request).pool.find(request.query_params.get("model"))
    if entry.backend is None:
        raise ApiError(503, f"the model {entry.name} is not loaded; a POST loads it", "model", "model_not_loaded",
                       retry_after=10)  # fmt: skip
    return entry.name, entry.backend


async def with_model(request: Request, model: str | None, call: Callable[..., T], *given: Any) -> T:
    """What `call(llm, *given)` gives that takes long for long texts. It ends when its client disconnects."""
    state_of(request).check_open()
    async with AsyncExitStack() as stack:
        backend = await held(request, model, stack)
        return await work(request, backend, call, *given)


async def count_prompt(request: Request, model: str | None, chat: ChatInput) -> int:
    """The tokens of a conversation's prompt."""
    allow_urls(chat.messages, state_of(request).settings.allow_image_urls)
    return await with_model(request, model, _counted, replace(chat, **rules_of(request)))


async def work(request: Request, backend: Backend, call: Callable[..., T], *given: Any) -> T:
    """Work on the text of a request, beside the event loop, until its client disconnects."""
    try:
        return await unless_gone(request, backend.work(asker_of(request), call, *given))
    except FewbitError as error:
        raise from_fewbit(error) from error
    except RecursionError:
        raise ApiError(400, "the request is nested too deeply", code="invalid_request") from None


def _counted(llm: LLM, chat: ChatInput) -> int:
    check_chars(llm, chat.messages, chat.tools)
    return count_tokens(llm, chat)


def _tokenized(llm: LLM, body: TokenizeRequest, rules: dict[str, Any]) -> Tokenized:
    check_chars(llm, body.prompt)
    if body.messages is not None:
        messages, tools = template_messages(body.messages), read_tools(body.tools, None, None).shown
        check_chars(llm, messages, tools)
        ids = chat_prompt(llm, ChatInput(messages, tools, body.chat_template_kwargs, **rules)).tokens
    else:
        ids = llm.tokenize(body.prompt or "", add_special=body.add_special_tokens)
    texts = [llm.tokenizer.token_text(token) for token in ids] if body.return_token_strs else None
    return Tokenized(len(ids), llm.engine.max_length, ids, texts)


def _detokenized(llm: LLM, tokens: list[int]) -> str:
    most = max_chars(llm)
    if len(tokens) > most:
        raise TooLong(f"{len(tokens)} tokens are too many: at most {most} are read")
    return llm.detokenize(tokens)
