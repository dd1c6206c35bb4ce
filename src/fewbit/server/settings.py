"""What a server is told at its start: where it listens, its limits, who may use it."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from ..errors import ArgumentError, PathError

MIN_KEY_CHARS = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it has defaults that are safe on one's own machine. Times are in seconds."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 16 << 20
    head_seconds: float = 0.8  # from the first byte of a request's headers to their last
    body_idle_seconds: float = 0.8  # between two parts of a body
    min_body_rate: int = 64 << 10  # bytes a second; a body that is slower after `body_idle_seconds` is refused
    max_prompt_tokens: int | None = None  # None: as many as the context holds
    max_output_tokens: int | None = None  # None: until the context is full
    max_outputs: int = 256  # of one request: prompts times `n`
    max_queue: int = 256  # outputs that wait for a model, beside those that run
    request_seconds: float = 3600.0  # of a request, when its model is there; what it wrote by then is its answer
    write_seconds: float = 60.0  # a client that reads nothing for so long is gone
    ping_seconds: float = 15.0  # between comments in a stream while there is nothing to say
    drain_seconds: float = 30.0  # that running requests get at the end
    load_seconds: float = 600.0  # until a model is there
    max_models: int | None = None  # that are loaded at a time; None: all that fit
    pinned: tuple[str, ...] = ()  # models that stay loaded
    api_keys: tuple[str, ...] = ()  # none: everybody who reaches the port
    cors_origins: tuple[str, ...] = ()
    log_json: bool = False
    strict: bool = False  # refuse unknown fields instead of ignoring them
    tools_without_template: str = "omit"  # tools that the chat template ignores: "omit", "prompt" or "refuse"
    allow_changes: bool = False  # clients may add, load, unload and remove models

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_keys(path: str | Path) -> tuple[str, ...]:
    """The API keys in a file: one a line; empty lines and those that begin with # are none."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise PathError(f"{path}: this is no text; write one API key on each line") from None
    except OSError as error:
        raise PathError(f"{path}: {error.strerror or error}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not keys:
        raise ArgumentError(f"{path}: there is no API key; write one on each line")
    for number, key in enumerate(keys, 1):
        if len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
            raise ArgumentError(
                f"{path}: key {number} is not {MIN_KEY_CHARS} or more ASCII characters without spaces; "
                "`openssl rand -hex 24` makes a good one"
            )
    return tuple(dict.fromkeys(keys))
