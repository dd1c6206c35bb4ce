"""What a file is that is no GGUF file, by its first bytes, and what to do about it."""

from __future__ import annotations

CONVERT = "convert it to GGUF first (llama.cpp has convert_hf_to_gguf.py), or look for a GGUF version of the model"
MODEL = "give the GGUF file of the model"

KINDS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "a PyTorch checkpoint or a zip archive", CONVERT),
    (b"\x80", "a pickle, as PyTorch writes them", CONVERT),
    *((magic, "a model file older than GGUF", CONVERT) for magic in (b"tjgg", b"fmgg", b"lmgg", b"GGJT", b"GGMF")),
    (b"\x1f\x8b", "a compressed file", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a compressed file", "unpack it first"),
    (b"\xfd7zXZ", "a compressed file", "unpack it first"),
    (b"<", "a web page", "download the file itself; hf:org/repo names a repository"),
    (b"\x89PNG", "a PNG image", MODEL),
    (b"\xff\xd8\xff", "a JPEG image", MODEL),
    (b"%PDF", "a PDF document", MODEL),
    (b"{", "JSON", MODEL),
    (bytes(16), "a file that begins with zeros, as after a failed download", "download it again"),
)


def other_kind(start: bytes) -> str:
    """A sentence about a file that begins with these bytes.

    >>> other_kind(b"<!DOCTYPE html>")
    'this is a web page, not a GGUF file; download the file itself; hf:org/repo names a repository'
    """
    for magic, name, advice in KINDS:
        if start.startswith(magic):
            return f"this is {name}, not a GGUF file; {advice}"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:  # the length of a JSON header
        return f"this is a safetensors file, not a GGUF file; {CONVERT}"
    return f"not a GGUF file (it starts with {start[:4]!r})"
