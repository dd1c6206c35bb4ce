"""What an engine has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EngineStats:
    """Counts since the start, and the time that they took."""

    steps: int = 0  # that were launched
    tokens: int = 0  # of outputs
    draft_tokens: int = 0  # that were guessed and verified
    accepted_tokens: int = 0  # of them, those that were right
    forced_tokens: int = 0  # of them, those that constraints left no choice for
    prompt_tokens: int = 0  # those run: without the ones found in the cache, with the ones that were run again
    preemptions: int = 0
    images_encoded: int = 0
    images_reused: int = 0  # whose rows were kept from before
    active: int = 0  # now
    waiting: int = 0  # now
    launch_seconds: float = 0.0
    fetch_seconds: float = 0.0
    step_seconds: float = 0.0  # with the two before
