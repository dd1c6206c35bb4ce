"""LLM: a model that reads and writes text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack, overload

from ..encoding import find_encoder
from ..engine.beam_search import refuse_beside_beams
from ..engine.embedded import EmbeddedPrompt
from ..engine.request import Generation
from ..errors import RequestError
from ..files.hub import find, recommended_activations, recommended_sampling
from ..files.hub.names import model_name
from ..load_options import LoadOptions
from ..loading import Loaded, load
from ..models import open_text_model
from ..ops.sampling import SamplingParams
from ..option_fields import takes_options, with_args
from ..quantizing import quantized
from ..text.tokenizer import Tokenizer
from .callers import BlockingCaller, Caller, LoopCaller, drive
from .chat import ChatPlan, Messages
from .completion import Completion
from .drafting import make_speculation
from .fold import TextDelta, TextFold
from .labels import LabelReader
from .pooling import embedding_prompts, file_pooling
from .prompts import Prompt, Prompts, split_prompts
from .ranking import find_head
from .sampling_options import (
    ChatOptions,
    ChatStreamOptions,
    GenerationOptions,
    Options,
    PromptOptions,
    StreamOptions,
    beam_request,
    model_sampling,
    read_options,
)
from .stream import AsyncStream, Stream, complete, text_deltas
from .tool_runs import OnCall, run_rounds
from .tools import Tool

__all__ = ["LLM", "AsyncStream", "ChatOptions", "Options", "Prompt", "PromptOptions", "Stream", "TextDelta"]

SHORT_PROMPT = 512  # characters or tokens that are encoded in the event loop: starting a thread takes longer


class LLM(LabelReader):
    """A language model loaded from a file and ready to generate.

        llm = LLM("model.gguf", kv="q8_0")
        print(llm.generate("Once upon a time", max_tokens=64))
        for text in llm.chat([{"role": "user", "content": "hi"}], stream=True):
            print(text, end="")

    All methods may be called from several threads at once: their requests run together, in batches. A prompt that
    begins like an earlier one is not computed again from the start, as long as it is in the KV cache. A model that does
    not fit into memory, the container's if there is one, is refused with what would fit.

    An LLM belongs to its process. It cannot be pickled, and a forked process must load the model again.
    """

    @takes_options(LoadOptions)
    def __init__(self, options: LoadOptions) -> None:
        path = find(options.model, progress=options.progress, encoder=options.mmproj is None)
        file = open_text_model(path)
        if options.format is not None:
            file = quantized(file, options.format, options.keep, options.progress)
        metadata = file.tokenizer()
        tokenizer = Tokenizer.from_metadata(metadata)
        encoder = find_encoder(path, options)
        loaded = load(file, options, recommended_activations(metadata), None if encoder is None else encoder.model)
        refuses_images = encoder is not None and not loaded.sees
        encoder = encoder.checked() if encoder is not None and loaded.sees else None
        speculation = make_speculation(options, loaded, tokenizer)
        sampling = model_sampling(metadata, recommended_sampling(metadata))
        self._join(loaded, tokenizer, model_name(path), path, sampling, options, speculation, encoder)
        if refuses_images:
            self._images.refusal = (
                f"device {options.device!r} takes no images; load the model with device='cpu' or 'cuda'"
            )
        self.pooling = file_pooling(file.config, loaded.is_encoder)
        self.head = find_head(loaded, self.tokenizer, file.architecture)
        self.prompts, self.default_prompt = embedding_prompts(path)

    @classmethod
    def from_parts(
        cls, loaded: Loaded, tokenizer: Tokenizer, name: str = "model", sampling: SamplingParams | None = None
    ) -> LLM:
        """An LLM made of what is loaded already.

        Args:
            loaded: The executor, the cache and their sizes.
            tokenizer: The model's tokenizer.
            name: The `model_name`.
            sampling: Defaults of the sampling options.
        """
        llm = cls.__new__(cls)
        llm._join(loaded, tokenizer, name, None, sampling or SamplingParams(), LoadOptions())
        llm.head = find_head(loaded, llm.tokenizer, "")
        return llm

    @overload
    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompt: Sequence[Prompt], **options: Unpack[Options]) -> list[Completion]: ...
    def generate(self, prompt: Prompts, **options: Unpack[Options]) -> Completion | list[Completion]:
        """Continue a prompt, or several prompts in one batch.

            answer = llm.generate("The capital of France is", max_tokens=16)
            drafts = llm.generate("A haiku:", n=3).outputs
            first, second = llm.generate(["One", "Two"])

        Text gets the special tokens around it that the model expects. A special token that is spelled in the text stays
        plain text, so that untrusted text cannot inject one; to use special tokens, `tokenize` with `parse_special`.

        Args:
            prompt: Text or token ids, or a list of such prompts.
            options: See `Options`.

        Returns:
            A `Completion`, or for a list of prompts a list of the same length. With `n` > 1 each of them is the first
            of its prompt's `outputs`.
        """
        return drive(self._generate(BlockingCaller(), prompt, options))

    @overload
    async def agenerate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    async def agenerate(self, prompt: Sequence[Prompt], **options: Unpack[Options]) -> list[Completion]: ...
    async def agenerate(self, prompt: Prompts, **options: Unpack[Options]) -> Completion | list[Completion]:
        """`generate` that does not block the event loop: long text is tokenized in a thread."""
        return await self._generate(LoopCaller(), prompt, options)

    def stream(self, prompt: Prompt, **options: Unpack[StreamOptions]) -> Stream:
        """Continue one prompt, part by part.

            for text in llm.stream("Once upon a time"):
                print(text, end="", flush=True)

        Args:
            prompt: Text or token ids.
            options: See `Options`, all but `n` and `progress`.

        Returns:
            An iterator of text, whose `completion` holds the whole output at its end.
        """
        return Stream(self._worker, self._fold(prompt, self._stream_options(prompt, options)))

    def astream(self, prompt: Prompt, **options: Unpack[StreamOptions]) -> AsyncStream:
        """`stream` for `async for`. It begins when its first part is requested; what cannot run is refused then."""
        checked = self._stream_options(prompt, options)
        return AsyncStream(self._worker, lambda: self._fold(prompt, checked))

    async def aparts(
        self, prompt: Prompts, *, embedded: EmbeddedPrompt | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[TextDelta, None]:
        """The text of several outputs while they are written.

            async with aclosing(await llm.aparts(["Once", "Twice"], n=2)) as deltas:
                async for delta in deltas:
                    print(delta.index, delta.text)

        What cannot run is refused at once. The outputs begin when the first delta is requested. Text of an output that
        came while nobody waited is one delta.

        Args:
            prompt: Text or token ids, or a list of such prompts.
            embedded: Images in each of the prompts, of `embed_images`.
            options: See `Options`, all but `progress`. The `n` outputs of a prompt follow each other in
                `TextDelta.index`.
        """
        caller = LoopCaller()
        checked = read_options(options, self.sampling)
        _refuse_progress(checked)
        if (
            checked.structure is None
            and checked.samplers is None
            and sum(map(len, split_prompts(prompt)[0])) <= SHORT_PROMPT
        ):
            return text_deltas(self._worker, self._folds(prompt, checked, embedded=embedded)[0], caller)
        groups = await caller.compute(lambda: self._folds(prompt, checked, embedded=embedded)[0])
        return text_deltas(self._worker, groups, caller)

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> Completion: ...
    @overload
    def chat(
        self, messages: Sequence[Messages], *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> list[Completion]: ...
    @overload
    def chat(self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatStreamOptions]) -> Stream: ...
    def chat(
        self, messages: Messages | Sequence[Messages], *, stream: bool = False, **options: Unpack[ChatOptions]
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
            options: See `ChatOptions`, which are `Options` and `PromptOptions`.

        Returns:
            A `Completion`; for a list of conversations a list of the same length; a `Stream` with `stream=True`.
        """
        plans, several = self._chat.plan_all(messages, stream, options)
        if stream:
            return Stream(self._worker, self._chat_fold(plans[0]))
        return drive(self._answer(BlockingCaller(), plans, several))

    @overload
    async def achat(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> Completion: ...
    @overload
    async def achat(
        self, messages: Sequence[Messages], *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> list[Completion]: ...
    @overload
    async def achat(
        self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatStreamOptions]
    ) -> AsyncStream: ...
    async def achat(
        self, messages: Messages | Sequence[Messages], *, stream: bool = False, **options: Unpack[ChatOptions]
    ) -> Completion | list[Completion] | AsyncStream:
        """`chat` that does not block the event loop."""
        caller = LoopCaller()
        plans, several = await caller.compute(lambda: self._chat.plan_all(messages, stream, options))
        if stream:
            return AsyncStream(self._worker, lambda: self._chat_fold(plans[0]))
        return await self._answer(caller, plans, several)

    def plan_chat(
        self, messages: Messages, *, refuse_ignored_tools: bool = False, **options: Unpack[ChatOptions]
    ) -> ChatPlan:
        """How `chat` runs a conversation: the prompt, what holds the reply, and how it is read. For `achat_parts`.

        Args:
            messages: Dicts with `role` and `content`.
            refuse_ignored_tools: Raise an error, and not a warning, if the chat template ignores tools.
            options: See `ChatOptions`.
        """
        return self._chat.plan(messages, refuse_ignored_tools, options)

    async def achat_parts(self, plan: ChatPlan) -> AsyncGenerator[TextDelta, None]:
        """The replies to a conversation while they are written, as `aparts` gives texts.

        Args:
            plan: Of `plan_chat`.
        """
        caller = LoopCaller()
        checked = read_options(plan.options, self.sampling)  # type: ignore[arg-type]
        _refuse_progress(checked)
        groups, _ = await caller.compute(lambda: self._folds([plan.prompt], checked, [plan]))
        return text_deltas(self._worker, groups, caller)

    def run_tools(
        self,
        messages: Messages,
        tools: Sequence[Tool],
        max_rounds: int = 8,
        on_call: OnCall | None = None,
        **options: Any,
    ) -> Completion:
        """Answer a conversation, calling tools until there is an answer.

            def weather(city: str) -> str:
                "The weather of a city."
                return "sunny"

            answer = llm.run_tools([{"role": "user", "content": "How is the weather in Rome?"}], [weather])

        Each function that the model calls is run, and its result goes back to the model; so does the text of an error.
        A call of a tool that is a dict ends the loop: it is in `Completion.tool_calls`.

        Args:
            messages: The conversation. If it is a list, the rounds and the answer are appended to it.
            tools: Python functions, or dicts.
            max_rounds: Most rounds of calls. Then the model must answer without tools.
            on_call: Called with each `ToolCall` before it is made; False refuses the call.
            options: See `ChatOptions`. `tool_choice` is that of the first round.
        """
        first = options.pop("tool_choice", None) or "auto"

        def answer(messages: list[Any], choice: Any) -> Completion:
            found: Completion = self.chat(messages, **options, tools=tools, tool_choice=choice)
            return found

        conversation: Any = messages if isinstance(messages, list) else [*messages]
        return run_rounds(answer, conversation, tools, max_rounds, on_call, first)

    def __repr__(self) -> str:
        return f"LLM({self.model_name}, {self.ctx} tokens of context)"

    async def _generate(self, caller: Caller, prompt: Prompts, options: Options) -> Completion | list[Completion]:
        checked = read_options(options, self.sampling)
        groups, several = await caller.compute(lambda: self._folds(prompt, checked))
        completions = await complete(self._worker, groups, caller, checked.progress)
        return completions if several else completions[0]

    async def _answer(self, caller: Caller, plans: list[ChatPlan], several: bool) -> Completion | list[Completion]:
        checked = read_options(plans[0].options, self.sampling)  # type: ignore[arg-type]
        groups, _ = await caller.compute(lambda: self._folds([plan.prompt for plan in plans], checked, plans))
        completions = await complete(self._worker, groups, caller, checked.progress)
        return completions if several else completions[0]

    def _chat_fold(self, plan: ChatPlan) -> TextFold:
        checked = self._stream_options(plan.prompt, plan.options)
        return self._folds([plan.prompt], checked, [plan])[0][0][0]

    def _folds(
        self,
        prompt: Prompts,
        options: GenerationOptions,
        plans: Sequence[ChatPlan] = (),
        embedded: EmbeddedPrompt | None = None,
    ) -> tuple[list[list[TextFold]], bool]:
        """The outputs of each prompt, and whether a list of prompts was given. `plans`: of prompts of conversations."""
        prompts, several = split_prompts(prompt)
        options = self._with_samplers(self._compiled(options))
        eos_ids = {*self.engine.eos_ids, *options.stop_token_ids} if options.stop_token_ids else None
        groups = []
        for number, text in enumerate(prompts):
            given = options.for_prompt(number)
            if plans:
                given = {**given, "constraint": plans[number].constraint(given.get("constraint"))}
            tokens = self._prompts.encode(text)
            if embedded is not None:
                given = {**given, "embedded": embedded}
            elif plans and plans[number].images:
                given = {**given, "embedded": self._images.embed(plans[number].images, tokens)}
            requests: Sequence[Generation]
            if options.beams is not None:
                refuse_beside_beams({"what holds the reply": given.get("constraint")})
                beams = self.engine.beams(tokens, options.beams, eos_ids=eos_ids, **beam_request(given))
                requests = beams[: options.n]
            else:
                requests = self.engine.generation(tokens, options.params, n=options.n, eos_ids=eos_ids, **given)
            first, n = number * len(requests), len(requests)
            make = partial(
                TextFold, self.tokenizer, n=n, stops=options.stop, prompt_only=options.prompt_only,
                structure=options.structure, visible_tokens=options.visible_tokens,
                reply=plans[number].reply if plans else None,
                dropped_messages=plans[number].dropped if plans else 0,
            )  # fmt: skip
            groups.append([make(request, index) for index, request in enumerate(requests, first)])
        return groups, several

    def _compiled(self, options: GenerationOptions) -> GenerationOptions:
        """The structure of the outputs as their constraint."""
        if options.structure is None:
            return options
        constraint = self.grammars.compile(options.structure.grammar)
        return replace(options, request={**options.request, "constraint": constraint})

    def _with_samplers(self, options: GenerationOptions) -> GenerationOptions:
        """Samplers and words as the engine takes them."""
        if options.samplers is None:
            return options
        ends = {*self.engine.eos_ids, *options.stop_token_ids}
        extras = self._token_texts.extras(options.samplers, options.request.get("logit_bias"), ends)
        return replace(options, request={**options.request, **extras})

    def _fold(self, prompt: Prompt, options: GenerationOptions) -> TextFold:
        return self._folds(prompt, options)[0][0][0]

    def _stream_options(self, prompt: Prompt, options: Any) -> GenerationOptions:
        checked = read_options(options, self.sampling)
        _refuse_progress(checked)
        if checked.n != 1:
            raise RequestError(f"a stream gives one output: n must be 1, got {checked.n}; use generate")
        if split_prompts(prompt)[1]:
            raise RequestError("a stream takes one prompt, got a list of them; use generate")
        return checked


def _refuse_progress(options: GenerationOptions) -> None:
    if options.progress is not False:
        raise RequestError("text that is streamed shows its own progress: progress must be False")


LLM.__doc__ = with_args(LLM.__doc__, LoadOptions)
