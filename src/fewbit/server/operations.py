"""Responses, embeddings, Anthropic's and Ollama's APIs in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .adapters import LoadAdapterRequest, UnloadAdapterRequest
from .anthropic_types import AnswerMessage, CountTokensRequest, MessagesRequest, TokenCount
from .batch.records import BatchObject
from .changes import Changed, DeleteRequest, ModelRequest, PullRequest, PullStatus
from .feedback import FeedbackRequest, Forgotten, Rated
from .files import FileObject
from .llama_server import AppliedTemplate, ApplyTemplateRequest, Infilled, InfillRequest, Props, Slot
from .ollama_embed import OllamaEmbedded, OllamaEmbedding, OllamaEmbeddingsRequest, OllamaEmbedRequest
from .ollama_models import ModelTags, RunningModels, ShownModel, ShowRequest, Version
from .ollama_types import OllamaChatRequest, OllamaGenerateRequest, OllamaRecord
from .openai_batches import BatchCreateRequest, BatchList
from .openai_embeddings import EmbeddingList, EmbeddingsRequest
from .openai_files import DeletedFile, FileList, FileUpload
from .openai_responses import DeletedResponse, InputTokens, ItemList, ResponseObject
from .openai_responses_types import InputTokensRequest, ResponseRequest
from .rerank import ClassifyAnswer, ClassifyRequest, RerankAnswer, RerankRequest, ScoreAnswer, ScoreRequest
from .sse import NDJSON


class AnthropicErrorDetail(msgspec.Struct):
    type: str
    message: str


class AnthropicError(msgspec.Struct):
    error: AnthropicErrorDetail
    type: Literal["error"] = "error"


class OllamaError(msgspec.Struct):
    error: str


OTHERS: list[tuple[str, str, str, Any, Any, bool]] = [
    ("post", "/v1/responses", "Answer input.", ResponseRequest, ResponseObject, True),
    ("get", "/v1/responses/{response_id}", "A stored response.", None, ResponseObject, False),
    ("delete", "/v1/responses/{response_id}", "Forget a stored response.", None, DeletedResponse, False),
    ("get", "/v1/responses/{response_id}/input_items", "The input of a stored response.", None, ItemList, False),
    ("post", "/v1/responses/input_tokens", "Count tokens of input.", InputTokensRequest, InputTokens, False),
    ("post", "/v1/embeddings", "Vectors for texts.", EmbeddingsRequest, EmbeddingList, False),
    ("post", "/v1/feedback", "Rate an answer that was kept.", FeedbackRequest, Rated, False),
    ("delete", "/v1/feedback/{answer_id}", "Forget an answer and its votes.", None, Forgotten, False),
    ("post", "/v1/rerank", "Sort documents by how well they answer a query.", RerankRequest, RerankAnswer, False),
    ("post", "/v1/score", "Score pairs of texts.", ScoreRequest, ScoreAnswer, False),
    ("post", "/v1/classify", "Give texts labels.", ClassifyRequest, ClassifyAnswer, False),
    ("post", "/v1/files", "Upload a file of requests.", FileUpload, FileObject, False),
    ("get", "/v1/files", "The files.", None, FileList, False),
    ("get", "/v1/files/{file_id}", "What is known of a file.", None, FileObject, False),
    ("get", "/v1/files/{file_id}/content", "A file.", None, str, False),
    ("delete", "/v1/files/{file_id}", "Remove a file.", None, DeletedFile, False),
    ("post", "/v1/batches", "Answer the requests in a file.", BatchCreateRequest, BatchObject, False),
    ("get", "/v1/batches", "The batches.", None, BatchList, False),
    ("get", "/v1/batches/{batch_id}", "One batch.", None, BatchObject, False),
    ("post", "/v1/batches/{batch_id}/cancel", "End a batch early.", None, BatchObject, False),
    ("post", "/v1/messages", "Answer messages.", MessagesRequest, AnswerMessage, True),
    ("post", "/v1/messages/count_tokens", "Count tokens of messages.", CountTokensRequest, TokenCount, False),
    ("post", "/api/chat", "Answer messages.", OllamaChatRequest, OllamaRecord, True),
    ("post", "/api/generate", "Answer a prompt.", OllamaGenerateRequest, OllamaRecord, True),
    ("post", "/api/embed", "Vectors for texts.", OllamaEmbedRequest, OllamaEmbedded, False),
    ("post", "/api/embeddings", "A vector for a text.", OllamaEmbeddingsRequest, OllamaEmbedding, False),
    ("get", "/api/tags", "The models.", None, ModelTags, False),
    ("get", "/api/ps", "The models that are loaded.", None, RunningModels, False),
    ("post", "/api/show", "What is known of a model.", ShowRequest, ShownModel, False),
    ("post", "/api/pull", "Fetch a model and serve it.", PullRequest, PullStatus, True),
    ("delete", "/api/delete", "Serve a model no more.", DeleteRequest, None, False),
    ("post", "/v1/models/load", "Load a model.", ModelRequest, Changed, False),
    ("post", "/v1/models/unload", "Unload a model.", ModelRequest, Changed, False),
    ("post", "/v1/load_lora_adapter", "Load a LoRA adapter.", LoadAdapterRequest, str, False),
    ("post", "/v1/unload_lora_adapter", "Forget a LoRA adapter.", UnloadAdapterRequest, str, False),
    ("get", "/props", "What is known of a loaded model.", None, Props, False),
    ("get", "/slots", "Places for requests.", None, list[Slot], False),
    ("post", "/apply-template", "The prompt of messages.", ApplyTemplateRequest, AppliedTemplate, False),
    ("post", "/infill", "Fill in between a prefix and a suffix.", InfillRequest, Infilled, True),
    ("get", "/api/version", "The version of the server.", None, Version, False),
]


def errors_of(path: str) -> Any:
    """How the API at a path writes its errors; None: as OpenAI does."""
    if path.startswith("/v1/messages"):
        return AnthropicError
    return OllamaError if path.startswith("/api/") else None


def stream_of(path: str) -> str:
    """The media type of what the API at a path streams."""
    return NDJSON if path.startswith("/api/") else "text/event-stream"
