"""A `server_cls` for Ray Serve LLM: fewbit in the place of vLLM behind Ray's own OpenAI ingress.

It has the methods of `ray.llm`'s LLMServerProtocol, and imports nothing of Ray but the classes of its answers, when it
answers. `docs/cluster.md` says what Ray's own checks prevent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from importlib import import_module
from typing import Any

from ..errors import ArgumentError
from ..llm import LLM
from ..server.app import make_app
from ..server.pool import Pool
from ..server.settings import Settings
from .asgi import post

MODELS = "ray.llm._internal.serve.core.configs.openai_api_models"


class FewbitServer:
    """A replica of a model behind Ray Serve LLM's ingress.

    Args:
        llm_config: Ray's LLMConfig. `model_loading_config.model_source` is the model as `LLM` takes it, `engine_kwargs`
            are options of `LLM`.
    """

    async def __init__(self, llm_config: Any) -> None:  # type: ignore[misc]
        self._config = llm_config
        await self.start()

    async def start(self) -> None:
        """Load the model."""
        source = self._config.model_loading_config.model_source or self._config.model_id
        if not isinstance(source, str):
            raise ArgumentError(f"model_source must be a path, URL or name, got {type(source).__name__}")
        self._llm = LLM(source, **self._config.engine_kwargs)
        pool = Pool.of(self._llm)
        pool.entries[self._llm.model_name].aliases.add(self._config.model_id)
        self._app = make_app(Settings(), pool)

    def __serve_build_asgi_app__(self) -> Any:
        """The whole server, where Serve sends requests to replicas directly."""
        return self._app

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        async for part in self._answer("/v1/chat/completions", request, "ChatCompletionResponse"):
            yield part

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        async for part in self._answer("/v1/completions", request, "CompletionResponse"):
            yield part

    async def embeddings(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        async for part in self._answer("/v1/embeddings", request, "EmbeddingResponse"):
            yield part

    async def tokenize(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        async for part in self._answer("/tokenize", request, "TokenizeResponse"):
            yield part

    async def detokenize(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        async for part in self._answer("/detokenize", request, "DetokenizeResponse"):
            yield part

    async def check_health(self) -> None:
        self._llm.engine.stats()

    async def llm_config(self) -> Any:
        return self._config

    @classmethod
    def get_deployment_options(cls, llm_config: Any) -> dict[str, Any]:
        """Those of the config: fewbit needs no placement of its own."""
        return dict(llm_config.deployment_config)

    async def _answer(self, path: str, request: Any, response: str) -> AsyncGenerator[Any, None]:
        """An object of Ray's, or events as text if the request wants a stream."""
        given: Mapping[str, Any] = request.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        status, parts = await post(self._app, path, json.dumps(given).encode())
        if status == 200 and given.get("stream"):
            async for part in parts:
                yield part.decode()
            return
        body = json.loads(b"".join([part async for part in parts]))
        models = import_module(MODELS)
        if status != 200:
            error = {**body["error"], "code": status}
            yield models.ErrorResponse(error=models.ErrorInfo(**error))
        else:
            yield getattr(models, response)(**body)
