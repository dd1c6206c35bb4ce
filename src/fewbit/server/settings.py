"""What a server is told at its start: where it listens, its limits, who may use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from .keys import ApiKey


@dataclass(frozen=True, slots=True)
class LearnOptions:
    """When a server learns from feedback, and how.

    Args:
        folder: Where versions of the adapter are.
        every_seconds: The shortest time between two trainings.
        after_votes: New votes that training waits for.
        threads: Threads of the training; None: all usable cores.
        training: Further arguments of `tune_from_feedback`.
    """

    folder: str
    every_seconds: float = 24 * 3600.0
    after_votes: int = 1
    threads: int | None = None
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it has defaults that are safe on one's own machine. Times are in seconds."""

    host: str = "127.0.0.1"
    port: int = 8000
    allowed_hosts: tuple[str, ...] = ()  # names in Host headers, beside `host`; see `Guard`
    tls_cert: str | None = None  # a file with the certificate, and those that signed it
    tls_key: str | None = None
    max_connections: int = 1000  # in all; more are closed with 503
    max_connections_per_address: int = 250
    first_request_seconds: float = 10.0  # that a new connection may be idle
    keep_alive_seconds: float = 30.0  # that a connection may be idle after a request
    max_body_bytes: int = 16 << 20
    max_bodies_bytes: int = 256 << 20  # of all requests that are being answered; one client gets half of it
    head_seconds: float = 0.8  # from the first byte of a request's headers to their last
    body_idle_seconds: float = 0.8  # between two parts of a body
    min_body_rate: int = 64 << 10  # bytes a second; a body that is slower after `body_idle_seconds` is refused
    max_messages: int = 10_000  # of one request
    max_prompt_tokens: int | None = None  # None: as many as the context holds
    max_output_tokens: int | None = None  # None: until the context is full
    max_outputs: int = 256  # of one request: prompts times `n`
    max_queue: int = 256  # outputs that wait for a model, beside those that run
    request_seconds: float = 3600.0  # of a request, when its model is there; what it wrote by then is its answer
    write_seconds: float = 60.0  # a client that reads nothing for so long is gone
    ping_seconds: float = 15.0  # between comments in a stream while there is nothing to say
    drain_seconds: float = 30.0  # that running requests get at the end
    load_seconds: float = 600.0  # until a model is there, also one that is fetched first
    turn_seconds: float = 10.0  # after which a loaded model gives way to one that waits for its room
    max_models: int | None = None  # that are loaded at a time; None: all that fit
    pinned: tuple[str, ...] = ()  # models that stay loaded
    api_keys: tuple[str | ApiKey, ...] = ()  # none: everybody who reaches the port
    cors_origins: tuple[str, ...] = ()
    log_json: bool = False
    strict: bool = False  # refuse unknown fields instead of ignoring them
    tools_without_template: str = "omit"  # tools that the chat template ignores: "omit", "prompt" or "refuse"
    keeps_volatile_lines: bool = False  # of system messages; see volatile.py
    allow_image_urls: bool = False  # images are fetched from the web for clients
    allow_changes: bool = False  # clients may add, load, unload and remove models
    share_models: bool = False  # pages at /local may fetch the files of models
    feedback: str | None = None  # SQLite file of answers and votes that clients want kept; None: there is none
    learn: LearnOptions | None = None  # train an adapter on votes; needs `feedback`
    files_dir: str | None = None  # where clients' files and batches are kept; None: there are none
    max_file_bytes: int = 100 << 20
    max_files_bytes: int = 1 << 30  # of one API key
    max_files: int = 1000  # of one API key
    max_batches: int = 100  # of one API key that are not over

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def keys(self) -> list[ApiKey]:
        return [one if isinstance(one, ApiKey) else ApiKey(one) for one in self.api_keys]
