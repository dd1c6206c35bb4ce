"""Kernels compiled by NVRTC without a GPU: what each takes of registers, and what it spills.

FEWBIT_CUDA_REPORT=FILE writes that of all kernels there, whatever process has compiled them. What was compiled once is
remembered beside it, by all the text that the compiler reads, so that a change costs what it changes.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from hashlib import sha256
from pathlib import Path

from fewbit.ops.cuda import compile as compiler
from fewbit.ops.cuda.kernels import Entry, program

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
TRADED = 24  # bytes that the compiler may spill by choice: with some registers less, one more block fits
Used = dict[str, dict[str, int]]  # kernel -> registers, those that its threads could have, bytes spilled
_ENTRY = re.compile(r"entry function '(\w+)' for.*?(\d+) bytes spill stores.*?Used (\d+) registers", re.DOTALL)
_BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")
_INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def report_path() -> Path | None:
    given = os.environ.get("FEWBIT_CUDA_REPORT")
    return Path(given) if given else None


def compile_kernels(found: list[Entry], arch: str) -> Used:
    """What the assembler says of each kernel, from the memory beside the report where it is there."""
    source = program(tuple(dict.fromkeys(found)))
    report = report_path()
    kept = report.with_suffix("") / f"{_key(source, arch)}.json" if report else None
    if kept and kept.exists():
        used: Used = json.loads(kept.read_text())
    else:
        used = _compile(source, arch)
        if kept:
            _keep(kept, used)
    assert set(used) == {entry.name for entry in found}
    return {entry.name: {**used[entry.name], "most": _most(entry)} for entry in found}


def _most(entry: Entry) -> int:
    """Registers that a thread can have, where one block runs alone: they are given out by eights."""
    bounds = _BOUNDS.search(entry.text)
    assert bounds
    return min(255, 65536 // int(bounds[1]) // 8 * 8)


def spilled(used: Used, allowed: int = 0, traded: int = 0) -> dict[str, int]:
    """Kernels that spill more bytes than are allowed to all, or to those that have registers left (`traded`)."""
    limits = {name: max(allowed, traded if one["registers"] < one["most"] else 0) for name, one in used.items()}
    return {name: one["spilled"] for name, one in used.items() if one["spilled"] > limits[name]}


def _compile(source: str, arch: str) -> Used:
    code, log = compiler.compile_source(source, arch, verbose=True)
    assert code.startswith(b"\x7fELF")
    return {m[1]: {"registers": int(m[3]), "spilled": int(m[2])} for m in _ENTRY.finditer(log)}


def _keep(path: Path, used: Used) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(used))
    os.replace(part, path)


def _key(source: str, arch: str) -> str:
    read = [Path(compiler.__file__), *sorted(_included(source))]  # the first has the compiler's options
    texts = [compiler.compiler_version(), arch, source, *map(_text, read)]
    return sha256("\0".join(texts).encode()).hexdigest()[:32]


@cache
def _text(path: Path) -> str:
    return path.read_text()


def _included(source: str) -> set[Path]:
    """All headers that a source includes, those of headers too."""
    found, left = set[Path](), set(_headers(source))
    while left:
        path = left.pop()
        found.add(path)
        left |= set(_headers(_text(path))) - found
    return found


@cache
def _headers(source: str) -> tuple[Path, ...]:
    folders = [Path(folder) for folder in compiler.include_path()]
    every = [folder / name for name in _INCLUDE.findall(source) for folder in folders]
    return tuple(path for path in every if path.exists())
