"""`POST /v1/chat/completions`, as OpenAI's clients call it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from .bodies import Body, JsonResponse, read
from .errors import ApiError
from .feedback import AnswerKeeper, feedback_store
from .jobs import Job
from .openai_chat_writer import ChatWriter
from .openai_messages import Message, Tool, ToolChoice, read_tools, template_messages
from .openai_types import NOT_HERE, MaxTokens, Sampling, ThoughtTokens, effort_names, max_tokens_of, thinking_names
from .runs import begin, namespace


class ThinkingSwitch(Body):
    type: Literal["disabled", "enabled", "adaptive", "auto"]
    budget_tokens: ThoughtTokens | None = None


class ChatRequest(Sampling, kw_only=True):
    """The last fields change nothing by contract."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **NOT_HERE, "functions": ([],), "audio": (), "web_search_options": (),
        "reasoning_format": ("auto", "deepseek", "deepseek-legacy"),
    }  # fmt: skip
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    n_predict: MaxTokens | None = None  # the same, as llama.cpp calls it
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # names that the chat template looks for
    continue_final_message: bool | None = None  # None: if the last message is the assistant's
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    reasoning_budget: ThoughtTokens | None = None  # tokens after which a thought is ended
    thinking_token_budget: ThoughtTokens | None = None  # the same, as vLLM calls it
    enable_thinking: bool | None = None
    thinking: ThinkingSwitch | None = None
    include_reasoning: bool | None = None
    modalities: list[Literal["text"]] | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    feedback: bool | None = None  # keep the conversation and the answers, so that they can be rated

    def job(self) -> Job:
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs", "invalid_request")
        given = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        most = max_tokens_of(next((one for one in given if one is not None), None))
        if most == 0:
            raise ApiError(400, "max_tokens must be at least 1, got 0", "max_tokens", "invalid_request")
        return Job(
            messages=template_messages(self.messages),
            tools=read_tools(self.tools, self.tool_choice, self.parallel_tool_calls),
            output=self.output(),
            thought_tokens=self._thought_tokens(),
            template=self._template_names(),
            continues=self._continues(),
            options={**self.options(), "max_tokens": most},
            n=self.n or 1,
            priority=self.priority or 0,
            client=self.user_name,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )

    def _continues(self) -> bool | None:
        if self.add_generation_prompt and self.continue_final_message:
            raise ApiError(400, "add_generation_prompt must be false where continue_final_message is true",
                           "continue_final_message", "invalid_request")  # fmt: skip
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise ApiError(400, "continue_final_message needs a last message of the assistant",
                           "continue_final_message", "invalid_request")  # fmt: skip
        return False if self.add_generation_prompt else self.continue_final_message

    def _template_names(self) -> dict[str, Any] | None:
        names = self.chat_template_kwargs
        if self.add_generation_prompt is False:
            names = {"add_generation_prompt": False, **(names or {})}
        is_enabled = self.enable_thinking
        if is_enabled is None and self.thinking is not None:
            is_enabled = self.thinking.type != "disabled"
        return effort_names(self.reasoning_effort, thinking_names(is_enabled, names))

    def _thought_tokens(self) -> int | None:
        own = None if self.thinking is None else self.thinking.budget_tokens
        given = (self.reasoning_budget, self.thinking_token_budget, own)
        return max_tokens_of(next((one for one in given if one is not None), None))


async def chat_completions(request: Request) -> Response:
    body = await read(request, ChatRequest)
    job = body.job()
    job.namespace = namespace(request, body.cache_salt)
    store = feedback_store(request) if body.feedback else None
    run = await begin(request, body.model, job)
    keeper = None if store is None else AnswerKeeper(store, run.model, job.messages or [])
    writer = ChatWriter(run, body, bool(body.logprobs), body.include_reasoning is not False, keeper)
    if body.stream:
        return run.stream(writer.chunks())
    found = await run.collect()
    return JsonResponse(await asyncio.to_thread(writer.whole, *found))  # many log-probabilities take long
