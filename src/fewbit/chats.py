"""`LLM.chat` and `LLM.achat`, and the prompts that they make of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from .completion import Completion
from .engine.engine import Engine
from .errors import DtypeError
from .options import Answers, Message, OneAnswer, Options, Prompt, PromptOptions, check_messages, split_chat_options
from .outputs import AsyncStream, Stream, in_thread
from .text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .text.chat import Chat
    from .text.template import ChatTemplate

Messages = Sequence[Message]


class Chats(ABC):
    """What an LLM has for messages. Their prompt is token ids; all else is done by `generate` and `stream`."""

    engine: Engine
    tokenizer: Tokenizer

    @abstractmethod
    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion | list[Completion]: ...

    @abstractmethod
    async def agenerate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion | list[Completion]: ...

    @abstractmethod
    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream: ...

    @abstractmethod
    def astream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream: ...

    @abstractmethod
    def _refuse_long(self, text: str) -> None: ...

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[OneAnswer]
    ) -> Completion: ...
    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[Answers]
    ) -> Completion | list[Completion]: ...
    @overload
    def chat(self, messages: Messages, *, stream: Literal[True], **options: Unpack[Answers]) -> Stream: ...
    def chat(
        self, messages: Messages, *, stream: bool = False, **options: Unpack[Answers]
    ) -> Completion | list[Completion] | Stream:
        """Answer messages, dicts with `role` and `content`, by the model's chat template.

        Messages are as OpenAI's clients send them: `content` may be a list of text parts, or None beside `tool_calls`;
        `tools` are the functions that the model may call. `template` gives names that the template looks for, such as
        {"enable_thinking": False}. Special tokens that a message spells stay plain text; with `trust_content` they
        count.
        """
        of_chat, rest = split_chat_options(options)
        prompt = self._chat_prompt(messages, of_chat)
        return self.stream(prompt, **rest) if stream else self.generate(prompt, **rest)

    @overload
    async def achat(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[OneAnswer]
    ) -> Completion: ...
    @overload
    async def achat(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[Answers]
    ) -> Completion | list[Completion]: ...
    @overload
    async def achat(self, messages: Messages, *, stream: Literal[True], **options: Unpack[Answers]) -> AsyncStream: ...
    async def achat(
        self, messages: Messages, *, stream: bool = False, **options: Unpack[Answers]
    ) -> Completion | list[Completion] | AsyncStream:
        """`chat` that does not block the event loop."""
        of_chat, rest = split_chat_options(options)
        prompt = await in_thread(lambda: self._chat_prompt(messages, of_chat))
        return self.astream(prompt, **rest) if stream else await self.agenerate(prompt, **rest)

    def chat_prompt(
        self, messages: Messages, *, refuse_ignored_tools: bool = False, **options: Unpack[PromptOptions]
    ) -> list[int]:
        """The token ids of the prompt that `chat` makes of messages. Tools that the template ignores may be refused."""
        of_chat, _ = split_chat_options(options)
        return self._chat_prompt(messages, {**of_chat, "refuse_ignored_tools": refuse_ignored_tools})

    def count_tokens(self, messages: Messages, **options: Unpack[PromptOptions]) -> int:
        """How many tokens of the context a `chat` of these messages takes before the answer, however many fit."""
        of_chat, rest = split_chat_options(options)
        if rest:
            raise DtypeError(f"there is no option {', '.join(rest)}; there are tools, template, trust_content")
        return len(self._chat.prompt(check_messages(messages), **of_chat).encode(self.tokenizer))

    @property
    def can_chat(self) -> bool:
        """Whether `chat` works: the file has a template, or the tokens of ChatML."""
        from .text.template import find_source

        return not self.engine.is_encoder and find_source(self.tokenizer) is not None

    @property
    def template(self) -> ChatTemplate:
        """The chat template of the model."""
        return self._chat.template()

    @cached_property
    def _chat(self) -> Chat:
        from .text.chat import Chat

        return Chat(self.tokenizer)

    def _chat_prompt(self, messages: Messages, of_chat: dict[str, Any]) -> list[int]:
        self.engine.check_writes()
        said = check_messages(messages)
        for message in said:
            if message["role"] != "assistant" and isinstance(message.get("content"), str):
                self._refuse_long(message["content"])
        prompt = self._chat.prompt(said, **of_chat)
        self._refuse_long(prompt.unmarked)
        return prompt.encode(self.tokenizer)
