"""LangChain's standard tests of chat models, by its client for OpenAI's API, where both are installed.

    pip install langchain-tests langchain-openai
    python -m pytest tests/server/test_langchain.py -p no:asyncio

What the server does not offer is said by properties: it reads text only, no images, sound or documents. The tests of
the client itself (`ChatModelUnitTests`) do not ask the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from fewbit.llm import LLM, Completion, TextDelta

from .conftest import Live
from .scripted import quick_ends
from .tool_model import write_tool_model

pytest.importorskip("langchain_tests")
openai: Any = pytest.importorskip("langchain_openai")

from langchain_tests.integration_tests import ChatModelIntegrationTests  # type: ignore[import-not-found] # noqa: E402
from langchain_tests.unit_tests import ChatModelUnitTests  # type: ignore[import-not-found] # noqa: E402

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]  # warnings of LangChain about itself

JOKE = {"setup": "What do cats drink?", "punchline": "Miaow-juice."}
ARGUMENTS = {
    "Joke": JOKE,
    "magic_function": {"input": 3},
    "magic_function_no_args": {},
    "greeting_generator": {"answer_style": "pirate"},
    "get_weather": {"location": "San Francisco, CA"},
}


class Caller(LLM):
    """A small model that calls its tool when a user asks, and ends JSON early. The rest is up to its random weights."""

    async def aparts(self, prompt: Any, **options: Any) -> AsyncGenerator[TextDelta, None]:
        text = self.tokenizer.decode(prompt[0])
        tools = re.findall('^tool: .*?"name": "(.*?)"', text, re.MULTILINE)
        last = text.removesuffix("assistant:").strip().splitlines()[-1]
        if "JSON" in last and not tools:
            return self._written(json.dumps(JOKE))
        if not tools or not last.startswith("user: "):
            is_held = options.get("constraint") is not None
            return await super().aparts(prompt, **options, **({"logit_bias": self.bias} if is_held else {}))
        quoted = re.search("'(.*)'", last)
        arguments = ARGUMENTS.get(tools[0], {"customer_name": quoted and quoted[1], "description": "new"})
        return self._call(json.dumps({"name": tools[0], "arguments": arguments}, ensure_ascii=False))

    @cached_property
    def bias(self) -> dict[int, float]:
        return quick_ends(self)

    def _call(self, text: str) -> AsyncGenerator[TextDelta, None]:
        return self._written("<tool_", f"call>{text[:9]}", text[9:], "</tool_call>")

    async def _written(self, *parts: str) -> AsyncGenerator[TextDelta, None]:
        for part in parts:
            yield TextDelta(0, part, [1])
        yield TextDelta(0, "", [], completion=Completion("".join(parts), [1] * len(parts), "stop"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    path: Path = write_tool_model(tmp_path_factory.mktemp("models") / "caller.gguf")
    with Caller(path, ctx=4096, threads=1) as llm:
        found = Live(llm)
        yield found
        found.close()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
async def loop(anyio_backend: str) -> AsyncGenerator[None, None]:
    """One event loop for all tests: LangChain keeps its connections."""
    yield  # noqa: PT022 (a generator keeps the loop)


class Fewbit:
    """What both suites are told."""

    url = ""

    @pytest.fixture(autouse=True)
    def _server(self, server: Live) -> None:
        type(self).url = server.url

    @property
    def chat_model_class(self) -> Any:
        return openai.ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        where = {"model": "caller:latest", "base_url": f"{self.url}/v1", "api_key": "none"}
        return {**where, "max_retries": 0, "stream_usage": True}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return {"temperature": 0, "max_tokens": 400, "timeout": 60, "stop": []}

    @property
    def model_override_value(self) -> str:
        return "caller"

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestChat(Fewbit, ChatModelIntegrationTests):  # type: ignore[misc]
    def test_unicode_tool_call_that_is_not_forced(self, model: Any) -> None:
        super().test_unicode_tool_call_integration(model, force_tool_call=False)

    def test_a_prompt_that_is_too_long(self, model: Any) -> None:
        with pytest.raises(openai.chat_models.base.OpenAIContextOverflowError, match="maximum context length"):
            model.invoke("x" * 100_000)


class TestClient(Fewbit, ChatModelUnitTests):  # type: ignore[misc]
    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        environment = {"OPENAI_API_KEY": "none", "OPENAI_API_BASE": f"{self.url}/v1"}
        return environment, {"model": "caller"}, {"openai_api_base": f"{self.url}/v1"}

    @pytest.mark.xfail(reason="compares with a file that LangChain's own tests write")
    def test_serdes(self, model: Any, snapshot: Any) -> None:
        super().test_serdes(model, snapshot)
