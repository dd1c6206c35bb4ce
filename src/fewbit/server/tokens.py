"""`POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`, as evaluation harnesses call them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from ..errors import FewbitError
from ..llm import LLM
from .bodies import Body, JsonResponse, read
from .errors import ApiError, from_fewbit
from .openai_messages import Message, Tool, template_messages, template_tools
from .prompts import Conversation, chat_prompt
from .state import state_of


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
    async with state_of(request).pool.use(body.model) as llm:
        return JsonResponse(await in_thread(_tokenized, llm, body, state_of(request).settings.tools_without_template))


async def detokenize(request: Request) -> Response:
    body = await read(request, DetokenizeRequest)
    async with state_of(request).pool.use(body.model) as llm:
        return JsonResponse(Detokenized(await in_thread(llm.detokenize, body.tokens)))


async def tokenizer_info(request: Request) -> Response:
    async with state_of(request).pool.use(request.query_params.get("model")) as llm:
        words = llm.tokenizer
        eos = words.eos_token or None
        return JsonResponse(
            TokenizerInfo(words.bos_token or None, eos, eos, words.chat_templates.get("default"), words.vocab_size)
        )


def _tokenized(llm: LLM, body: TokenizeRequest, policy: str) -> Tokenized:
    if body.messages is not None:
        messages, tools = template_messages(body.messages), template_tools(body.tools, None)
        ids = chat_prompt(llm, Conversation(messages, tools, body.chat_template_kwargs, policy=policy)).tokens
    else:
        ids = llm.tokenize(body.prompt or "", add_special=body.add_special_tokens)
    texts = [llm.tokenizer.token_text(token) for token in ids] if body.return_token_strs else None
    return Tokenized(len(ids), llm.engine.max_length, ids, texts)


async def in_thread(call: Any, *given: Any) -> Any:
    """What takes long runs beside the event loop."""
    try:
        return await asyncio.to_thread(call, *given)
    except FewbitError as error:
        raise from_fewbit(error) from error
    except RecursionError:
        raise ApiError(400, "the request is nested too deeply", code="invalid_request") from None
