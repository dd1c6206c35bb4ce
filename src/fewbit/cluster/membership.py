"""Which replicas of a deployment are there: Serve tells the router of a handle, and that tells the frontend.

This module is apart from the router's, since Serve sends the router's module to each process as a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Listener = Callable[[list[str]], None]

_listeners: dict[tuple[str, str], Listener] = {}  # by application and deployment


def listen(app: str, deployment: str, listener: Listener) -> None:
    """Call `listener` with the names of the replicas that are there, from a thread, whenever they change."""
    _listeners[app, deployment] = listener


def publish(app: str, deployment: str, replicas: Iterable[str]) -> None:
    listener = _listeners.get((app, deployment))
    if listener is not None:
        listener([*replicas])
