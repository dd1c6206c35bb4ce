"""The kernels of sampling: a pass over the logits by many blocks, then one block a sample."""

from __future__ import annotations

from .kernels import Entry, entry

SCAN_THREADS, PICK_THREADS = 256, 1024  # kScanThreads, kPickThreads
CHUNK, GROUP = 2048, 128  # logits of a block of the first pass, and of which the largest is kept
CHUNK_BYTES = 32  # ChunkTop
MAX_VOCAB = 4096 * GROUP  # kMaxGroups


def sample_scan() -> Entry:
    return entry("sample_scan", (), SCAN_THREADS)


def sample_pick() -> Entry:
    return entry("sample_pick", (), PICK_THREADS)
