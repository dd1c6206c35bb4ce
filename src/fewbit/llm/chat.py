"""`LLM.chat` and `LLM.achat`, and the prompts that they make of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_type_hints, overload

from ..engine.engine import Engine
from ..errors import DtypeError, RequestError
from ..text.tokenizer import Tokenizer
from .completion import Completion
from .fold import in_thread
from .progress import Progress
from .sampling_options import (
    ChatOptions,
    ChatStreamOptions,
    Messages,
    Options,
    Prompt,
    PromptOptions,
    StreamOptions,
    check_messages,
    split_chat_options,
    split_conversations,
)
from .stream import AsyncStream, Stream

if TYPE_CHECKING:
    from ..text.chat import Chat
    from ..text.template import ChatTemplate


class Chats(ABC):
    """What an LLM has for messages. Their prompt is token ids; all else is done by `generate` and `stream`."""

    engine: Engine
    tokenizer: Tokenizer

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self, prompt: Prompt, *, progress: Progress = False, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, progress: Progress = False, **options: Unpack[Options]
    ) -> list[Completion]: ...
    @abstractmethod
    def generate(
        self, prompt: Prompt | Sequence[Prompt], *, progress: Progress = False, **options: Unpack[Options]
    ) -> Completion | list[Completion]: ...

    @overload
    async def agenerate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, *, progress: Progress = False, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    async def agenerate(
        self, prompt: Sequence[Prompt], *, progress: Progress = False, **options: Unpack[Options]
    ) -> list[Completion]: ...
    @abstractmethod
    async def agenerate(
        self, prompt: Prompt | Sequence[Prompt], *, progress: Progress = False, **options: Unpack[Options]
    ) -> Completion | list[Completion]: ...

    @abstractmethod
    def stream(self, prompt: Prompt, **options: Unpack[StreamOptions]) -> Stream: ...

    @abstractmethod
    def astream(self, prompt: Prompt, **options: Unpack[StreamOptions]) -> AsyncStream: ...

    @abstractmethod
    def _refuse_long(self, text: str) -> None: ...

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        stream: Literal[False] = False,
        progress: Progress = False,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...
    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        *,
        stream: Literal[False] = False,
        progress: Progress = False,
        **options: Unpack[ChatOptions],
    ) -> list[Completion]: ...
    @overload
    def chat(self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatStreamOptions]) -> Stream: ...
    def chat(
        self,
        messages: Messages | Sequence[Messages],
        *,
        stream: bool = False,
        progress: Progress = False,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion] | Stream:
        """Answer a conversation by the model's chat template, or several conversations in one batch.

            llm.chat([{"role": "user", "content": "Name three colors."}]).text

        Messages are as OpenAI's clients send them: `content` may be a list of text parts, or None beside `tool_calls`.
        Special tokens that a message spells stay plain text unless `trust_content` says otherwise.

        With `continue_final_message=True` the last message is the assistant's, and the answer continues its text: the
        prompt ends with that text, and `Completion.text` is what follows. A text with `<think>` or `</think>` continues
        the model's own answer from its start, thoughts included.

        Args:
            messages: Dicts with `role` and `content`, or a list of such conversations.
            stream: Return a `Stream`, for one conversation.
            progress: Show the progress of a batch on standard error, or call a function with (done, total).
            options: See `ChatOptions`, which are `Options` and `PromptOptions`.

        Returns:
            A `Completion`; for a list of conversations a list of the same length; a `Stream` with `stream=True`.
        """
        of_prompt, rest = _split_options(options, stream, progress)
        prompts, several = self._chat_prompts(messages, of_prompt, stream)
        if stream:
            return self.stream(prompts[0], **rest)  # type: ignore[misc]  # it refuses n > 1
        return self.generate(prompts if several else prompts[0], progress=progress, **rest)

    @overload
    async def achat(
        self,
        messages: Messages,
        *,
        stream: Literal[False] = False,
        progress: Progress = False,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...
    @overload
    async def achat(
        self,
        messages: Sequence[Messages],
        *,
        stream: Literal[False] = False,
        progress: Progress = False,
        **options: Unpack[ChatOptions],
    ) -> list[Completion]: ...
    @overload
    async def achat(
        self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatStreamOptions]
    ) -> AsyncStream: ...
    async def achat(
        self,
        messages: Messages | Sequence[Messages],
        *,
        stream: bool = False,
        progress: Progress = False,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion] | AsyncStream:
        """`chat` that does not block the event loop."""
        of_prompt, rest = _split_options(options, stream, progress)
        prompts, several = await in_thread(lambda: self._chat_prompts(messages, of_prompt, stream))
        if stream:
            return self.astream(prompts[0], **rest)  # type: ignore[misc]
        return await self.agenerate(prompts if several else prompts[0], progress=progress, **rest)

    def chat_prompt(
        self, messages: Messages, *, refuse_ignored_tools: bool = False, **options: Unpack[PromptOptions]
    ) -> list[int]:
        """The token ids of the prompt that `chat` makes of messages.

        Args:
            messages: Dicts with `role` and `content`.
            refuse_ignored_tools: Raise an error, and not a warning, if the chat template ignores tools.
            options: See `PromptOptions`.
        """
        of_prompt = _only_prompt_options(options)
        return self._chat_prompt(check_messages(messages), {**of_prompt, "refuse_ignored_tools": refuse_ignored_tools})

    def count_tokens(
        self, messages: Messages, *, refuse_ignored_tools: bool = False, **options: Unpack[PromptOptions]
    ) -> int:
        """Number of tokens of the prompt that `chat` makes of messages, whether they fit into the context or not.

        Args:
            messages: Dicts with `role` and `content`.
            refuse_ignored_tools: Raise an error, and not a warning, if the chat template ignores tools.
            options: See `PromptOptions`.
        """
        of_prompt = {**_only_prompt_options(options), "refuse_ignored_tools": refuse_ignored_tools}
        return len(self._chat.prompt(check_messages(messages), **of_prompt).encode(self.tokenizer))

    @property
    def can_chat(self) -> bool:
        """Whether `chat` works: the file has a template, or the tokens of ChatML."""
        from ..text.template import find_source

        return not self.engine.is_encoder and find_source(self.tokenizer) is not None

    @property
    def template(self) -> ChatTemplate:
        """The chat template of the model."""
        return self._chat.template()

    @cached_property
    def _chat(self) -> Chat:
        from ..text.chat import Chat

        return Chat(self.tokenizer)

    def _chat_prompts(
        self, messages: Messages | Sequence[Messages], of_prompt: dict[str, Any], stream: bool
    ) -> tuple[list[list[int]], bool]:
        """The prompt of each conversation, and whether several could have been given."""
        self.engine.check_writes()
        conversations, several = split_conversations(messages)
        if stream and several:
            raise RequestError("stream=True takes one conversation, got a list of them")
        prompts = []
        for one in conversations:  # no comprehension, whose frame a warning would count
            prompts.append(self._chat_prompt(one, of_prompt))
        return prompts, several

    def _chat_prompt(self, messages: Messages, of_prompt: dict[str, Any]) -> list[int]:
        self.engine.check_writes()
        for message in messages:
            if message["role"] != "assistant" and isinstance(message.get("content"), str):
                self._refuse_long(message["content"])
        prompt = self._chat.prompt(messages, **of_prompt)
        self._refuse_long(prompt.unmarked)
        return prompt.encode(self.tokenizer)


def _split_options(options: ChatOptions, stream: bool, progress: Progress) -> tuple[dict[str, Any], Options]:
    if stream and progress is not False:
        raise RequestError("stream=True shows each part as it is written: progress must be False")
    return split_chat_options(options)


def _only_prompt_options(options: PromptOptions) -> dict[str, Any]:
    of_prompt, rest = split_chat_options(options)
    if rest:
        known = ", ".join(get_type_hints(PromptOptions))
        raise DtypeError(f"unknown option {', '.join(rest)}; known options are {known}")
    return of_prompt
