"""What other people's clients can do with the server: each check makes real calls and raises if something is wrong.

    python -m tests.server.clients [CLIENT]...

runs the checks of these clients, or of all that are installed, and writes their rows of the table in docs/server.md.
Programs that are no packages, such as Open WebUI, are checked by the calls that they make.
Clients that need different versions of the same package are checked one after the other.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jsonschema
import pytest

from fewbit.llm import LLM, Completion, TextDelta

from .conftest import Live
from .scripted import CALL, SCHEMA, quick_ends, write_tool_model

PAGE = Path(__file__).parents[2] / "docs/server.md"
BEGIN, END = "<!-- clients -->\n", "<!-- /clients -->"
FEATURES = ("chat", "stream", "tools", "structured", "embeddings", "errors")
HELLO: Any = [{"role": "user", "content": "hello"}]
LONG: Any = [{"role": "user", "content": "x" * 6000}]
FUNCTION = {"name": "weather", "description": "It.", "parameters": SCHEMA}
TOOL: Any = {"type": "function", "function": FUNCTION}
CITY = {"city": "Riga"}
PERSON: Any = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "home": {"type": "object", "properties": {"city": {"enum": ["Riga", "Oslo"]}}, "required": ["city"],
                 "additionalProperties": False},
    },
    "required": ["name", "age", "home"],
    "additionalProperties": False,
}  # fmt: skip

Check = Callable[[str], None]


class Client(NamedTuple):
    """A client, and what is checked by which function. `package` is its name for pip."""

    package: str
    checks: dict[str, Check]
    note: str = ""


class Caller(LLM):
    """A small model that calls the weather tool if it has it, and ends what a grammar holds early."""

    async def aparts(self, prompt: Any, **options: Any) -> AsyncGenerator[TextDelta, None]:
        text = self.tokenizer.decode(prompt[0])
        last = text.removesuffix("assistant:").strip().splitlines()[-1]
        if "say hi" in text:
            return self._written("Hi there.")
        if '"weather"' in text and last.startswith("user: "):
            return self._written(CALL)
        is_held = options.get("constraint") is not None
        return await super().aparts(prompt, **options, **({"logit_bias": quick_ends(self)} if is_held else {}))

    async def _written(self, text: str) -> AsyncGenerator[TextDelta, None]:
        for part in (text[:7], text[7:]):
            yield TextDelta(0, part, [1])
        yield TextDelta(0, "", [], completion=Completion(text, [1, 1], "stop"))


@contextmanager
def serving(folder: Path) -> Iterator[Live]:
    with Caller(write_tool_model(folder / "tiny.gguf"), ctx=4096, threads=1) as llm:
        found = Live(llm)
        try:
            yield found
        finally:
            found.close()


def raises(kind: Any, call: Callable[[], Any], words: str = "") -> None:
    """Check that a call fails as the client expects it."""
    with pytest.raises(kind, match=re.escape(words)):
        call()


def person() -> Any:
    """A nested model of pydantic."""
    from pydantic import Field, create_model

    home: Any = create_model("Home", city=(Literal["Riga", "Oslo"], ...))
    return create_model("Person", name=(str, ...), age=(Annotated[int, Field(ge=0, le=99)], ...), home=(home, ...))


def check_person(text: str) -> None:
    jsonschema.validate(json.loads(text), PERSON)


def _openai(url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def openai_chat(url: str) -> None:
    with _openai(url) as client:
        found = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4)
        assert found.usage.completion_tokens == 4
        assert client.responses.create(model="tiny", input="hello", max_output_tokens=4).output_text


def openai_stream(url: str) -> None:
    with _openai(url) as client:
        found = [*client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4, stream=True)]
        assert found[-1].choices[0].finish_reason == "length"


def openai_tools(url: str) -> None:
    with _openai(url) as client:
        found = client.chat.completions.create(model="tiny", messages=HELLO, tools=[TOOL])
        assert found.choices[0].message.tool_calls[0].function.name == "weather"


def openai_structured(url: str) -> None:
    with _openai(url) as client:
        found = client.chat.completions.parse(model="tiny", messages=HELLO, response_format=person(), max_tokens=400)
        assert found.choices[0].message.parsed.home.city in ("Riga", "Oslo")
        given = client.responses.parse(model="tiny", input="hello", text_format=person(), max_output_tokens=400)
        assert given.output_parsed.age < 100


def openai_embeddings(url: str) -> None:
    with _openai(url) as client:
        assert len(client.embeddings.create(model="tiny", input=["a"], dimensions=8).data[0].embedding) == 8


def openai_errors(url: str) -> None:
    import openai

    with _openai(url) as client:
        raises(openai.NotFoundError, lambda: client.models.retrieve("none"))
        create = client.chat.completions.create
        raises(openai.BadRequestError, lambda: create(model="tiny", messages=LONG), "maximum context length")


def _anthropic(url: str) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def anthropic_chat(url: str) -> None:
    with _anthropic(url) as client:
        assert client.messages.create(model="tiny", messages=HELLO, max_tokens=4).usage.output_tokens == 4
        assert [model.id for model in client.models.list()] == ["tiny"]


def anthropic_stream(url: str) -> None:
    with _anthropic(url) as client, client.messages.stream(model="tiny", messages=HELLO, max_tokens=4) as stream:
        assert stream.get_final_message().stop_reason == "max_tokens"


def anthropic_tools(url: str) -> None:
    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    with _anthropic(url) as client:
        found = client.messages.create(model="tiny", messages=HELLO, max_tokens=64, tools=[tool])
        assert found.content[-1].input == CITY


def anthropic_structured(url: str) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": PERSON}}
    with _anthropic(url) as client:
        found = client.messages.create(model="tiny", messages=HELLO, max_tokens=400, output_config=config)
        check_person(found.content[0].text)


def anthropic_errors(url: str) -> None:
    import anthropic

    with _anthropic(url) as client:
        create = client.messages.create
        raises(
            anthropic.BadRequestError, lambda: create(model="tiny", messages=LONG, max_tokens=4), "prompt is too long"
        )


def _ollama(url: str) -> Any:
    import ollama

    return ollama.Client(host=url)


def ollama_chat(url: str) -> None:
    assert _ollama(url).chat("tiny", HELLO, options={"num_predict": 4}).eval_count == 4
    assert _ollama(url).list().models[0].model == "tiny:latest"


def ollama_stream(url: str) -> None:
    assert [*_ollama(url).chat("tiny", HELLO, stream=True, options={"num_predict": 4})][-1].done


def ollama_tools(url: str) -> None:
    (call,) = _ollama(url).chat("tiny", HELLO, tools=[TOOL]).message.tool_calls
    assert call.function.arguments == CITY


def ollama_structured(url: str) -> None:
    check_person(_ollama(url).chat("tiny", HELLO, format=PERSON, options={"num_predict": 400}).message.content)


def ollama_embeddings(url: str) -> None:
    assert len(_ollama(url).embed("tiny", ["a", "b"]).embeddings) == 2


def ollama_errors(url: str) -> None:
    import ollama

    raises(ollama.ResponseError, lambda: _ollama(url).chat("none", HELLO), "there is no model")


def _litellm(url: str, **more: Any) -> Any:
    import litellm

    asked = {"model": "openai/tiny", "api_base": f"{url}/v1", "api_key": "none", "messages": HELLO, "max_tokens": 8}
    return litellm.completion(**{**asked, **more})


def litellm_chat(url: str) -> None:
    assert _litellm(url).usage.completion_tokens == 8
    for provider in ("ollama_chat", "anthropic"):
        assert _litellm(url, model=f"{provider}/tiny", api_base=url).choices[0].message.content


def litellm_stream(url: str) -> None:
    assert [*_litellm(url, stream=True)][-1].choices[0].finish_reason == "length"


def litellm_tools(url: str) -> None:
    assert _litellm(url, tools=[TOOL]).choices[0].message.tool_calls[0].function.name == "weather"


def litellm_structured(url: str) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    check_person(_litellm(url, response_format=schema, max_tokens=400).choices[0].message.content)


def litellm_embeddings(url: str) -> None:
    import litellm

    found = litellm.embedding(model="openai/tiny", input=["a"], api_base=f"{url}/v1", api_key="none")
    assert found.data[0]["embedding"]


def litellm_errors(url: str) -> None:
    import litellm

    raises(litellm.ContextWindowExceededError, lambda: _litellm(url, messages=LONG))
    anthropic = {"model": "anthropic/tiny", "api_base": url, "messages": LONG}
    raises(litellm.ContextWindowExceededError, lambda: _litellm(url, **anthropic))


def _langchain(url: str, **more: Any) -> Any:
    from langchain_openai import ChatOpenAI

    asked: Any = {"model": "tiny", "base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "max_tokens": 4}
    return ChatOpenAI(**{**asked, **more})


def langchain_chat(url: str) -> None:
    assert _langchain(url).invoke("hello").content


def langchain_stream(url: str) -> None:
    assert len([*_langchain(url).stream("hello")]) > 1


def langchain_tools(url: str) -> None:
    assert _langchain(url).bind_tools([TOOL]).invoke("hello").tool_calls[0]["args"] == CITY


def langchain_structured(url: str) -> None:
    for method in ("json_schema", "function_calling"):
        found = _langchain(url, max_tokens=400).with_structured_output(person(), method=method).invoke("hello")
        assert found.home.city in ("Riga", "Oslo")


def langchain_embeddings(url: str) -> None:
    from langchain_openai import OpenAIEmbeddings

    where: Any = {"model": "tiny", "base_url": f"{url}/v1", "api_key": "none", "check_embedding_ctx_length": False}
    assert OpenAIEmbeddings(**where).embed_query("hello")


def langchain_errors(url: str) -> None:
    raises(Exception, lambda: _langchain(url).invoke("x" * 6000), "maximum context length")


def _llama_index(url: str) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    where: Any = {"model": "tiny", "api_base": f"{url}/v1", "api_key": "none", "max_retries": 0, "max_tokens": 4}
    return OpenAILike(**where, is_chat_model=True, is_function_calling_model=True)


def llama_index_chat(url: str) -> None:
    assert _llama_index(url).complete("hello").text


def llama_index_stream(url: str) -> None:
    assert len([*_llama_index(url).stream_complete("hello")]) > 1


def llama_index_tools(url: str) -> None:
    from llama_index.core.tools import FunctionTool

    def weather(city: str) -> str:
        return f"rain in {city}"

    llm = _llama_index(url)
    found = llm.chat_with_tools([FunctionTool.from_defaults(weather)], "hello")
    assert llm.get_tool_calls_from_response(found)[0].tool_kwargs == CITY


def llama_index_structured(url: str) -> None:
    llm = _llama_index(url)
    llm.max_tokens = 400
    assert llm.as_structured_llm(person()).complete("hello").raw.age < 100


def llama_index_embeddings(url: str) -> None:
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    found = OpenAILikeEmbedding(model_name="tiny", api_base=f"{url}/v1", api_key="none")
    assert found.get_text_embedding("hello")


def llama_index_errors(url: str) -> None:
    raises(Exception, lambda: _llama_index(url).complete("x" * 6000), "maximum context length")


def _llm(url: str) -> Any:
    from llm.default_plugins.openai_models import Chat

    return Chat("fewbit", key="none", model_name="tiny", api_base=f"{url}/v1", supports_tools=True)


def llm_chat(url: str) -> None:
    assert _llm(url).prompt("hello", stream=False, max_tokens=4).text()


def llm_stream(url: str) -> None:
    assert len([*_llm(url).prompt("hello", max_tokens=16)]) > 1


def llm_tools(url: str) -> None:
    import llm

    tool = llm.Tool(name="weather", description="It.", input_schema=SCHEMA)
    assert _llm(url).prompt("hello", stream=False, tools=[tool]).tool_calls()[0].arguments == CITY


def llm_structured(url: str) -> None:
    llm = _llm(url)
    llm.supports_schema = True
    check_person(llm.prompt("hello", stream=False, schema=PERSON, max_tokens=400).text())


def llm_errors(url: str) -> None:
    raises(Exception, lambda: _llm(url).prompt("x" * 6000, stream=False).text(), "maximum context length")


def _instructor(url: str, mode: str) -> Any:
    import instructor

    return instructor.from_openai(_openai(url), mode=instructor.Mode[mode])


def instructor_structured(url: str) -> None:
    for mode in ("TOOLS", "JSON_SCHEMA"):
        create = _instructor(url, mode).chat.completions.create
        found = create(model="tiny", messages=HELLO, response_model=person(), max_retries=0, max_tokens=400)
        assert found.home.city in ("Riga", "Oslo")


def instructor_errors(url: str) -> None:
    create = _instructor(url, "TOOLS").chat.completions.create
    raises(Exception, lambda: create(model="tiny", messages=LONG, response_model=None), "maximum context length")


def _pydantic_ai(url: str, output: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    return Agent(model, output_type=output, model_settings={"max_tokens": 400})


def pydantic_ai_chat(url: str) -> None:
    assert _pydantic_ai(url, str).run_sync("say hi").output == "Hi there."


def pydantic_ai_tools(url: str) -> None:
    asked = []

    def weather(city: str) -> str:
        asked.append(city)
        return "say hi"

    agent = _pydantic_ai(url, str)
    agent.tool_plain(weather)
    assert agent.run_sync("hello").output == "Hi there."
    assert asked == ["Riga"]


def pydantic_ai_structured(url: str) -> None:
    from pydantic_ai import NativeOutput

    for output in (person(), NativeOutput(person())):
        assert _pydantic_ai(url, output).run_sync("hello").output.home.city in ("Riga", "Oslo")


def pydantic_ai_errors(url: str) -> None:
    raises(Exception, lambda: _pydantic_ai(url, str).run_sync("x" * 6000), "maximum context length")


def _aider(url: str, message: str, *options: str) -> str:
    environment = {**os.environ, "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none", "TERM": "dumb"}
    command = [
        sys.executable, "-m", "aider", "--model", "openai/tiny", "--message", message, "--no-git", "--yes-always",
        "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--no-pretty", "--map-tokens", "0",
        "--edit-format", "ask", *options,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        found = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
    return found.stdout + found.stderr


def aider_chat(url: str) -> None:
    assert "Hi there." in (found := _aider(url, "say hi", "--no-stream")), found


def aider_stream(url: str) -> None:
    assert "Hi there." in (found := _aider(url, "say hi")), found


def aider_errors(url: str) -> None:
    found = _aider(url, "x" * 6000, "--no-stream")
    assert "token limit" in found, found
    assert "BadRequestError" not in found


def _of(name: str, *features: str) -> dict[str, Check]:
    return {feature: globals()[f"{name}_{feature}"] for feature in features or FEATURES}


CLIENTS = {
    "OpenAI": Client("openai", _of("openai")),
    "Anthropic": Client("anthropic", _of("anthropic", "chat", "stream", "tools", "structured", "errors")),
    "Ollama": Client("ollama", _of("ollama")),
    "LiteLLM": Client("litellm", _of("litellm"), "with the providers openai, ollama_chat and anthropic"),
    "LangChain": Client("langchain-openai", _of("langchain")),
    "LlamaIndex": Client("llama-index-llms-openai-like", _of("llama_index")),
    "llm": Client("llm", _of("llm", "chat", "stream", "tools", "structured", "errors")),
    "aider": Client("aider-chat", _of("aider", "chat", "stream", "errors")),
    "instructor": Client("instructor", _of("instructor", "structured", "errors"), "modes `TOOLS` and `JSON_SCHEMA`"),
    "Pydantic AI": Client(
        "pydantic-ai", _of("pydantic_ai", "chat", "tools", "structured", "errors"), "tool and native output"
    ),
}


AGENTS, OPEN_WEBUI = "test_agents.py", "test_open_webui.py"
SCRIPTED = {  # the calls of programs that are not installed: a file of tests, and the tests of each feature
    "Open WebUI": (OPEN_WEBUI, {
        "chat": "titles_tags", "stream": "a_chat_by", "embeddings": "documents_are",
    }),
    "Claude Code": (AGENTS, {"chat": "claude_code_counts", "stream": "claude_code", "tools": "claude_code"}),
    "Codex": (AGENTS, {"stream": "codex", "tools": "codex"}),
}  # fmt: skip


def scripted_row(name: str) -> str:
    """The line of the table for a program whose calls are scripted."""
    file, checks = SCRIPTED[name]
    cells = ["yes" if feature in checks else "" for feature in FEATURES]
    return f"| {name} | | {' | '.join(cells)} | its calls, scripted in `tests/server/{file}` |"


def run_scripted(name: str) -> None:
    file, checks = SCRIPTED[name]
    for feature, test in checks.items():
        print(name, feature, flush=True)
        command = [sys.executable, "-m", "pytest", "-q", str(Path(__file__).with_name(file)), "-k", test]
        if subprocess.run(command, check=False).returncode:
            sys.exit(f"{name}: {feature} failed")


def installed(client: Client) -> str | None:
    """The version of a client, if it is installed."""
    try:
        return version(client.package)
    except PackageNotFoundError:
        return None


def row(name: str, found: str | None) -> str:
    """The line of the table for a client of a version whose checks passed; None: nobody tried."""
    client = CLIENTS[name]
    tried = "yes" if found else "not tried"
    cells = [tried if feature in client.checks else "" for feature in FEATURES]
    return f"| {name} | {found or ''} | {' | '.join(cells)} | {client.note} |"


def table(text: str) -> list[str]:
    """The lines of the table in a page."""
    return text.partition(BEGIN)[2].partition(END)[0].splitlines()


def main() -> None:
    warnings.simplefilter("ignore")
    rows = {line.split("|")[1].strip(): line for line in table(PAGE.read_text())[2:]}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        for name, client in CLIENTS.items():
            found = installed(client) if name in (sys.argv[1:] or CLIENTS) else None
            for feature, check in client.checks.items() if found else ():
                print(name, found, feature, flush=True)
                check(server.url)
            if found or name not in rows:
                rows[name] = row(name, found)
    head = f"| client | version | {' | '.join(FEATURES)} | |\n{'|---' * (len(FEATURES) + 3)}|\n"
    for name in SCRIPTED if not sys.argv[1:] else [one for one in sys.argv[1:] if one in SCRIPTED]:
        run_scripted(name)
        rows[name] = scripted_row(name)
    lines = "".join(f"{rows[name]}\n" for name in [*CLIENTS, *SCRIPTED] if name in rows)
    text = PAGE.read_text()
    PAGE.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}{head}{lines}{END}", text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
