"""`FewbitServer` with stand-ins for the classes of Ray Serve LLM, which need vLLM or SGLang."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from fewbit.cluster.llm_server import MODELS, FewbitServer
from fewbit.errors import ArgumentError


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


class ErrorInfo(Anything):
    message: str
    code: int


class ErrorResponse(BaseModel):
    error: ErrorInfo


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("ChatCompletion", "Completion", "Embedding", "Tokenize", "Detokenize")
    found = SimpleNamespace(**{f"{kind}Response": type(f"{kind}Response", (Anything,), {}) for kind in kinds})
    found.ErrorInfo, found.ErrorResponse = ErrorInfo, ErrorResponse
    monkeypatch.setitem(sys.modules, MODELS, found)  # type: ignore[arg-type]


def config(path: Any, **changes: Any) -> Any:
    given = {
        "model_id": "org/tiny", "model_loading_config": SimpleNamespace(model_source=path),
        "engine_kwargs": {"ctx": 512, "threads": 1}, "deployment_config": {"num_replicas": 2},
    }  # fmt: skip
    return SimpleNamespace(**{**given, **changes})


def request(**fields: Any) -> Anything:
    return Anything(model="org/tiny", **fields)


async def made(path: Path) -> FewbitServer:
    server = FewbitServer.__new__(FewbitServer)
    await server.__init__(config(str(path)))  # type: ignore[misc]
    return server


def on_server(path: Path, call: Any) -> Any:
    async def main() -> Any:
        server = await made(path)
        try:
            return await call(server)
        finally:
            server._llm.close()

    return asyncio.run(main())


def test_answers_are_those_of_the_model(path: Path) -> None:
    async def call(server: FewbitServer) -> None:
        await server.check_health()
        options = {"temperature": 0, "max_tokens": 6}
        messages = [{"role": "user", "content": "hello"}]
        expected = server._llm.chat(messages, temperature=0, max_tokens=6).text
        (whole,) = [one async for one in server.chat(request(messages=messages, **options))]
        assert type(whole).__name__ == "ChatCompletionResponse"
        assert whole.choices[0]["message"]["content"] == expected
        lines = [one async for one in server.chat(request(messages=messages, stream=True, **options))]
        data = [json.loads(line[6:]) for one in lines for line in one.strip().split("\n\n") if "[DONE]" not in line]
        assert "".join(one["choices"][0]["delta"].get("content") or "" for one in data) == expected
        (done,) = [one async for one in server.completions(request(prompt="hello", **options))]
        assert done.usage["completion_tokens"] == 6
        (tokens,) = [one async for one in server.tokenize(request(prompt="hello"))]
        (text,) = [one async for one in server.detokenize(request(tokens=tokens.tokens))]
        assert text.prompt == "hello"
        (rows,) = [one async for one in server.embeddings(request(input=["a", "b"]))]
        assert len(rows.data) == 2

    on_server(path, call)


def test_errors_are_those_of_ray(path: Path) -> None:
    async def call(server: FewbitServer) -> Any:
        return [one async for one in server.completions(request(prompt="x" * 4000, stream=True))]

    (error,) = on_server(path, call)
    assert isinstance(error, ErrorResponse)
    assert error.error.code == 400
    assert "maximum context length" in error.error.message


def test_a_stream_that_is_closed_ends_its_job(path: Path) -> None:
    async def call(server: FewbitServer) -> None:
        parts = server.completions(request(prompt="a", max_tokens=400, stream=True))
        await anext(parts)
        await parts.aclose()
        async with asyncio.timeout(20):
            while server._llm.engine.stats().active:
                await asyncio.sleep(0.01)

    on_server(path, call)


def test_a_source_in_a_bucket_is_refused() -> None:
    async def main() -> None:
        server = FewbitServer.__new__(FewbitServer)
        await server.__init__(config({"bucket_uri": "s3://a"}))  # type: ignore[misc]

    with pytest.raises(ArgumentError, match="model_source must be a path"):
        asyncio.run(main())


def test_it_has_what_the_ingress_calls() -> None:
    protocol = pytest.importorskip("ray.llm._internal.serve.core.protocol").LLMServerProtocol
    for name in ("start", "chat", "completions", "check_health", "tokenize", "detokenize", "llm_config"):
        theirs, ours = inspect.signature(getattr(protocol, name)), inspect.signature(getattr(FewbitServer, name))
        assert [*ours.parameters] == [*theirs.parameters]
    assert FewbitServer.get_deployment_options(config("x")) == {"num_replicas": 2}


def test_a_config_of_ray_takes_the_class(path: Path) -> None:
    """Without vLLM: the config is read, and only the ingress cannot be imported."""
    found = pytest.importorskip("ray.llm._internal.serve.core.configs.llm_config")
    made = found.LLMConfig(
        model_loading_config={"model_id": "tiny", "model_source": str(path)},
        server_cls="fewbit.cluster.llm_server:FewbitServer", engine_kwargs={"ctx": 512},
    )  # fmt: skip
    assert made.server_cls is FewbitServer
