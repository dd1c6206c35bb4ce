"""One error for all APIs; each API writes it in its own shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import (
    ArgumentError,
    DtypeError,
    FewbitError,
    FileChanged,
    OutOfMemory,
    OutOfPages,
    PositionError,
    QueueFull,
    RequestError,
    ShapeError,
    TemplateError,
    TokenizerError,
    TooLong,
)

_CALLERS = (
    ArgumentError, DtypeError, PositionError, RequestError, ShapeError, TemplateError, TokenizerError
)  # fmt: skip
MAX_REFLECTED = 100  # characters of what a client sent, in what it is told
_HEADERS = {  # nobody reads the rest of a body that is too slow or too large
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},
    413: {"Connection": "close"},
}
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    **_OPENAI_TYPES,
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Overflow(NamedTuple):
    """A prompt that does not fit, in the words by which clients of each API recognize it."""

    tokens: int
    limit: int
    is_exact: bool

    def openai(self) -> str:
        """
        >>> Overflow(9000, 8192, is_exact=True).openai()[:90]
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 900"
        """
        count = f"{self.tokens}" if self.is_exact else f"at least {self.tokens}"
        return (
            f"This model's maximum context length is {self.limit} tokens. However, your messages resulted in {count} "
            "tokens. Please reduce the length of the messages."
        )

    def anthropic(self) -> str:
        """
        >>> Overflow(9000, 8192, is_exact=True).anthropic()
        'prompt is too long: 9000 tokens > 8192 maximum'
        """
        return f"prompt is too long: {self.tokens} tokens > {self.limit} maximum"


class ApiError(Exception):
    """What a client is told: an HTTP status, a sentence, the field that it is about, and a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,  # seconds
        closes: bool = False,  # the connection
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after
        self.closes, self.overflow = closes, overflow

    @property
    def headers(self) -> dict[str, str]:
        found = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.closes:
            found["Connection"] = "close"
        return {**found, **_HEADERS.get(self.status, {})}

    def __reduce__(self) -> tuple[Any, ...]:
        found = (self.status, self.message, self.param, self.code, self.retry_after, self.closes, self.overflow)
        return ApiError, found


class Interrupted(ApiError):
    """The replica that ran a job ended. The job can be run again from its beginning."""

    def __init__(self) -> None:
        message = "the replica that wrote this answer ended; ask again"
        super().__init__(503, message, code="replica_lost", retry_after=1)


def unsupported(name: str, hint: str = "") -> ApiError:
    """A field that is known, and that this server cannot serve."""
    return ApiError(400, f"{name} is not supported{hint and '; ' + hint}", name, "unsupported_parameter")


def invalid_output(reason: str) -> ApiError:
    """An answer that is complete, and is not what the request asked for."""
    return ApiError(500, reason, code="invalid_output")


def out_of_time() -> ApiError:
    """A request that had nothing to show at its deadline."""
    return ApiError(503, "the request took longer than this server allows; try again later, or ask for less",
                    code="request_timeout", retry_after=5)  # fmt: skip


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down", retry_after=10)


def cut(text: str, most: int = MAX_REFLECTED) -> str:
    """What a client sent, as it is told: not all of what is long.

    >>> cut("x" * 200)[-5:]
    'xx...'
    """
    return text if len(text) <= most else text[:most] + "..."


def from_fewbit(error: FewbitError) -> ApiError:
    """An error of the library as a client is told it."""
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full", retry_after=2)
    if isinstance(error, OutOfPages | OutOfMemory):
        return ApiError(503, str(error), code="overloaded", retry_after=5)
    if isinstance(error, FileChanged):  # its message has a path
        return ApiError(503, "the model's file changed while it was in use; ask again, and it is loaded anew",
                        code="model_failed", retry_after=5)  # fmt: skip
    if isinstance(error, TooLong):
        overflow = None
        if error.tokens is not None and error.limit is not None:
            overflow = Overflow(error.tokens, error.limit, error.is_exact)
        return ApiError(400, str(error), code="context_length_exceeded", overflow=overflow)
    if isinstance(error, _CALLERS):
        return ApiError(400, str(error), code="invalid_request")
    return ApiError(500, str(error), code="internal_error")


def openai_body(error: ApiError) -> dict[str, Any]:
    kind = _OPENAI_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    message = error.message if error.overflow is None else error.overflow.openai()
    return {"error": {"message": message, "type": kind, "param": error.param, "code": error.code}}


def anthropic_body(error: ApiError) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = error.message if error.overflow is None else error.overflow.anthropic()
    return {"type": "error", "error": {"type": kind, "message": message}}


def ollama_body(error: ApiError) -> dict[str, Any]:
    return {"error": error.message}


def body_for(path: str) -> Callable[[ApiError], dict[str, Any]]:
    """How the API at a path writes its errors."""
    if path.startswith("/v1/messages"):
        return anthropic_body
    return ollama_body if path.startswith("/api/") else openai_body
