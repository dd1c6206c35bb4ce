"""The kernels of sampling: a pass over the logits by many blocks, then one block a sample."""

from __future__ import annotations

from .kernels import Entry, entry

SCAN_THREADS, PICK_THREADS = 256, 1024  # kScanThreads, kPickThreads
CHUNK, GROUP = 2048, 128  # logits of a block of the first pass, and of which the largest is kept
CHUNK_BYTES = 32  # ChunkTop
MAX_VOCAB = 4096 * GROUP  # kMaxGroups
_LOGITS = "const float* logits, int stride, int vocab, const uint32_t* packed"


def sample_scan() -> Entry:
    parameters = f"{_LOGITS}, const int32_t* previous, float* changed, float* groups, fewbit::ChunkTop* chunks"
    return entry("sample_scan.h", "sample_scan", (), SCAN_THREADS, parameters)


def sample_pick() -> Entry:
    between = "const float* changed, const float* groups, const fewbit::ChunkTop* chunks, int num_chunks"
    parameters = f"{_LOGITS}, {between}, int32_t* tokens, float* logprobs, int32_t* status"
    return entry("sample.h", "sample_pick", (), PICK_THREADS, parameters)
