"""What frameworks and programs over an API can do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

from .client_calls import CITY, HELLO, LONG, PERSON, TOOL, check_person, person, raises
from .scripted import SCHEMA
from .sdk_checks import openai_client


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

    return instructor.from_openai(openai_client(url), mode=instructor.Mode[mode])


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
