"""Which replica is to run a job: the one that has most of its prompt in its cache, unless it has much more to do.

Frontends do not tokenize. They hash the text of a prompt in chunks, each with all before it, and remember which
replica got which chunks. That a replica has evicted some of them only costs time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import ceil
from typing import Any

import msgspec

from ..server.jobs import Job

CHUNK_BYTES = 256
MAX_CHUNKS = 1024  # of a prompt; what is behind them tells no more
MAX_REMEMBERED = 1 << 16  # chunks of a replica
CHUNKS_PER_OUTPUT = 4  # one more output at a replica is worth so many chunks that are computed elsewhere
MAX_LOAD_FACTOR = 1.25  # times the mean, that no replica exceeds
FREE_OUTPUTS = 2  # that a replica may have whatever the mean is

Key = Sequence[bytes]


def prompt_key(job: Job) -> Key:
    """The hashes of the chunks of a job's prompt. Two prompts have as many in common as they begin alike.

    >>> [len(prompt_key(Job(prompts=["x" * length]))) for length in (200, 300, 600)]
    [0, 1, 2]
    """
    found, text = [], prompt_bytes(job)[: CHUNK_BYTES * MAX_CHUNKS]
    digest = blake2b(job.namespace.encode("utf-8", "replace"), digest_size=8)
    for begin in range(0, len(text) - CHUNK_BYTES + 1, CHUNK_BYTES):
        digest.update(text[begin : begin + CHUNK_BYTES])
        found.append(digest.digest())
    return found


def prompt_bytes(job: Job) -> bytes:
    """The text of the first prompt, in the order in which templates write it."""
    if job.messages is None:
        return b"" if not job.prompts else _encoded(job.prompts[0])
    return _encoded([*job.tools.functions]) + b"".join(map(_encoded, job.messages))


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:  # half a surrogate pair
        return repr(value).encode()


class PrefixIndex:
    """The chunks of prompts that each replica got.

    Args:
        most: Number of chunks of a replica that are remembered, those that were used last.
    """

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._seen: dict[str, OrderedDict[bytes, None]] = {}

    def add(self, replica: str, key: Key) -> None:
        seen = self._seen.setdefault(replica, OrderedDict())
        for chunk in reversed(key):  # the first ones are used by most prompts, and are forgotten last
            seen[chunk] = None
            seen.move_to_end(chunk)
        while len(seen) > self._most:
            seen.popitem(last=False)

    def drop(self, replica: str) -> None:
        self._seen.pop(replica, None)

    def depth(self, replica: str, key: Key) -> int:
        """How many chunks a prompt has in common with those that a replica got."""
        seen = self._seen.get(replica, OrderedDict())
        return next((depth for depth, chunk in enumerate(key) if chunk not in seen), len(key))


def choose(key: Key, loads: Mapping[str, int], index: PrefixIndex) -> str:
    """The replica for a prompt. Where nothing tells them apart, all frontends choose the same.

    Args:
        key: The prompt's.
        loads: Outputs of each replica.
        index: What they have seen.
    """
    bound = max(FREE_OUTPUTS, ceil(MAX_LOAD_FACTOR * (sum(loads.values()) + 1) / len(loads)))
    free = [name for name, load in loads.items() if load < bound]
    first = key[0] if key else b""

    def rank(name: str) -> tuple[int, bytes]:
        saved = index.depth(name, key) - CHUNKS_PER_OUTPUT * loads[name]
        return saved, blake2b(first + name.encode(), digest_size=8).digest()

    return max(free, key=rank)
