"""The kernels of sampling: a pass over the logits by many blocks, then one block a sample."""

from __future__ import annotations

from functools import cache

from .kernels import Entry, make_entry

SCAN_THREADS, PICK_THREADS = 256, 1024  # kScanThreads, kPickThreads
CHUNK, GROUP = 2048, 128  # logits of a block of the first pass, and of which the largest is kept
CHUNK_BYTES = 32  # ChunkTop
MAX_VOCAB = 4096 * GROUP  # kMaxGroups

_LOGITS = "const float* logits, int stride, int vocab, const uint32_t* packed"


@cache
def sample_scan() -> Entry:
    parameters = f"{_LOGITS}, const int32_t* previous, float* changed, float* groups, fewbit::ChunkTop* chunks"
    call = "sample_scan(logits, stride, vocab, packed, previous, changed, groups, chunks)"
    return make_entry("sample_scan.h", "sample_scan", SCAN_THREADS, parameters, call)


@cache
def sample_pick() -> Entry:
    results = "int32_t* tokens, float* logprobs, int32_t* status"
    between = "const float* changed, const float* groups, const fewbit::ChunkTop* chunks, int num_chunks"
    given = "logits, stride, vocab, packed, changed, groups, chunks, num_chunks, tokens, logprobs, status"
    return make_entry(
        "sample.h", "sample_pick", PICK_THREADS, f"{_LOGITS}, {between}, {results}", f"sample_pick({given})"
    )
