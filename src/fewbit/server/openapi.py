"""`GET /openapi.json`: what can be asked and answered, made from the structs that read and write it."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .bodies import JsonResponse
from .health import Health, Stats
from .in_browser import LocalPlan, LocalPlanRequest, SharedModels
from .openai_chat import ChatRequest
from .openai_chat_writer import ChatCompletion
from .openai_completions import CompletionAnswer, CompletionRequest
from .openai_models import Model, ModelList
from .operations import OTHERS, errors_of, stream_of
from .state import state_of
from .tokens import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest, TokenizerInfo

NAME = str.maketrans("/", "_", "{}")  # of an operation
FORMS = frozenset(("/v1/files",))  # whose bodies are not JSON
REF = "#/components/schemas/{name}"
# Of each event. What `data` holds is JSON, as the API's own documents describe it, or [DONE].
EVENT = {"type": "object", "properties": {"data": {"type": "string"}, "event": {"type": "string"}}}


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    error: ErrorDetail


# method, path, summary, body, answer, whether it streams too. An API adds its lines here.
OPERATIONS: list[tuple[str, str, str, Any, Any, bool]] = [
    ("get", "/health", "Whether the server is there.", None, Health, False),
    ("get", "/stats", "What the server does now.", None, Stats, False),
    ("get", "/metrics", "Counts and times for Prometheus.", None, str, False),
    ("get", "/v1/models", "The models.", None, ModelList, False),
    ("get", "/v1/models/{model}", "One model.", None, Model, False),
    ("post", "/v1/chat/completions", "Answer messages.", ChatRequest, ChatCompletion, True),
    ("post", "/v1/completions", "Continue prompts.", CompletionRequest, CompletionAnswer, True),
    ("post", "/tokenize", "Token ids of a text or of messages.", TokenizeRequest, Tokenized, False),
    ("post", "/detokenize", "The text of token ids.", DetokenizeRequest, Detokenized, False),
    ("get", "/tokenizer_info", "Special tokens and chat template.", None, TokenizerInfo, False),
    ("post", "/local/plan", "The plan of a model for a browser.", LocalPlanRequest, LocalPlan, False),
    ("get", "/local/models", "Models whose files a browser may fetch.", None, SharedModels, False),
    ("get", "/local/models/{model}", "The file of a model.", None, str, False),
    *OTHERS,
]


async def openapi(request: Request) -> Response:
    state = state_of(request)
    found = with_models(document(), list(state.pool.entries))
    return JsonResponse(found if state.settings.strict else with_others(found))


def with_others(found: dict[str, Any]) -> dict[str, Any]:
    """The same document for a server that ignores fields that it does not know."""
    for schema in found["components"]["schemas"].values():
        if schema.get("additionalProperties") is False:
            del schema["additionalProperties"]
    return found


def with_models(found: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The same document with the models that there are."""
    found = deepcopy(found)
    for name, schema in found["components"]["schemas"].items():
        if name.endswith("Request") and "model" in schema["properties"]:
            is_needed = "model" in schema.get("required", ())
            schema["properties"]["model"] = {"enum": names} if is_needed else {"enum": [*names, None], "default": None}
    for path in found["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "model":
                    parameter["schema"] = {"type": "string", "enum": names}
    return found


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    kinds = [kind for _, path, _, body, answer, _ in OPERATIONS for kind in (body, answer, errors_of(path) or Error)]
    kinds = [kind for kind in kinds if kind not in (None, str)]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    by_kind = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for method, path, summary, body, answer, streams in OPERATIONS:
        failed = by_kind[errors_of(path) or Error]
        found = _operation(path, by_kind.get(body), by_kind.get(answer), failed, streams)
        name = f"{method}_{path.strip('/').translate(NAME)}"
        paths.setdefault(path, {})[method] = {"summary": summary, "operationId": name, **found}
    return {
        "openapi": "3.1.0",
        "info": {"title": "fewbit", "version": fewbit_version(), "description": "Language models in few bits."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _operation(path: str, body: Any, answer: Any, error: Any, streams: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": answer}} if answer else {"text/plain": {}}
    failed = {"description": "Refused.", "content": {"application/json": {"schema": error}}}
    kind = stream_of(path)
    streamed = {kind: {"schema": EVENT if kind == "text/event-stream" else {"type": "string"}}} if streams else {}
    found: dict[str, Any] = {
        "responses": {
            "200": {"description": "Done.", "content": {**content, **streamed}},
            "4XX": failed,
            **dict.fromkeys(("504", "529") if path.startswith("/v1/messages") else ("503",), failed),
        },
    }
    if body is not None:
        form = "application/json" if path not in FORMS else "multipart/form-data"
        found["requestBody"] = {"required": True, "content": {form: {"schema": body}}}
    names = re.findall(r"{(\w+)}", path)
    if names:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    return found


def fewbit_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fewbit")
    except PackageNotFoundError:
        return "0"
