"""Kernels compiled at first use by NVRTC; what was compiled once is kept in the cache folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import RLock
from typing import Any

from ...errors import ExtraError, PathError
from .nvrtc import compile_program
from .processes import CompilerPool, Source

INSTALL = "pip install 'fewbit[cuda]'"
TARGETS = {"sm_90": "sm_90a"}  # of NVRTC: with the instructions that only this architecture has


def package(name: str) -> Any:
    """A module of NVIDIA's packages, or one sentence that says what to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ExtraError(f"NVIDIA GPUs need the package of {name} ({error}); install it: {INSTALL}") from None


@cache
def sources() -> Path:
    """The folder of the C++ headers: beside this module in an installed package, else in the source tree."""
    here = Path(__file__).parent / "csrc"
    folder = here if here.is_dir() else Path(__file__).parents[4] / "csrc"
    if not (folder / "cuda" / "tile.h").exists():
        raise PathError(f"the sources of the GPU kernels are missing from {folder}; install fewbit again")
    return folder


def include_path() -> list[str]:
    return [str(sources()), str(sources() / "cuda"), str(sources() / "cuda" / "std")]


@cache
def digest() -> str:
    """Of all that a kernel may include."""
    folder, total = sources(), sha256()
    for path in sorted([*folder.glob("*.generated.h"), *folder.glob("formats/*.h"), *folder.glob("cuda/**/*")]):
        if path.is_file():
            total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


@cache
def compiler_version() -> str:
    nvrtc = package("cuda.bindings.nvrtc")
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:  # the package is there, its library is not
        raise ExtraError(f"NVIDIA's run-time compiler cannot be loaded ({error}); install it: {INSTALL}") from None
    if int(status):
        raise ExtraError(f"NVIDIA's run-time compiler does not answer ({status}); install it again: {INSTALL}")
    return f"{major}.{minor}"


def compile_source(source: str, arch: str, verbose: bool = False) -> tuple[bytes, str]:
    """C++ to machine code for an architecture such as "sm_90"; with `verbose`, what the assembler says of registers."""
    compiler_version()
    return compile_program(source, _options(arch) + (["--ptxas-options=-v"] if verbose else []))


def _options(arch: str) -> list[str]:
    includes = [f"--include-path={folder}" for folder in include_path()]
    return [f"-arch={TARGETS.get(arch, arch)}", "--std=c++17", "--device-as-default-execution-space", *includes]


def cache_folder() -> Path:
    """Where compiled kernels are kept: in FEWBIT_CACHE, else in fewbit's folder of XDG_CACHE_HOME or ~/.cache."""
    own, shared = os.environ.get("FEWBIT_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(os.path.expanduser(own)).absolute() / "cubins"
    if shared and os.path.isabs(shared):
        return Path(shared, "fewbit", "cubins")
    return Path("~/.cache/fewbit/cubins").expanduser()


def cubin(source: str, arch: str) -> bytes:
    """Machine code for a source: from the cache folder, or from who compiles it now, or else compiled here."""
    key = _key(source, arch)
    pending, code = _pending.get(key), _kept(key)
    if code is None and pending is not None and not pending.cancel():
        with suppress(Exception):  # what is wrong is said below
            code = pending.result()
    if code is None:
        code, _ = compile_source(source, arch)
        _keep(key, code)
    return code


def compile_ahead(sources: Iterable[str], arch: str, urgent: bool = False) -> list[Future[bytes]]:
    """Begin to compile what the cache folder lacks, in processes beside this one; returns at once.

    Args:
        sources: C++, most wanted first.
        arch: The architecture.
        urgent: They come before what others have asked for.
    """
    with _submitting:
        found = {key: source for source in sources if not _path(key := _key(source, arch)).exists()}
        running = {key: future for key in found if (future := _pending.get(key)) and not (urgent and future.cancel())}
        missing = {key: source for key, source in found.items() if key not in running}
        jobs = [Source(source, _options(arch), partial(_keep, key)) for key, source in missing.items()]
        futures = _pool.submit(jobs, urgent)
        submitted = dict(zip(missing, futures, strict=True))
        _pending.update(submitted)
    for key, future in submitted.items():
        future.add_done_callback(partial(_forget, key))
    return [*running.values(), *futures]


def compile_all(sources: Iterable[str], arch: str) -> None:
    """Compile what the cache folder lacks, on all cores. Raises what the compiler finds wrong."""
    for future in compile_ahead(sources, arch, urgent=True):
        with suppress(CancelledError):  # somebody who needs it compiles it himself
            future.result()


def _alone(source: str, options: list[str]) -> bytes:
    compiler_version()
    return compile_program(source, options)[0]


_pool = CompilerPool(_alone)
_pending: dict[str, Future[bytes]] = {}  # kernels that are compiled now, by their names in the cache folder
_submitting = RLock()


def _forget(key: str, future: Future[bytes]) -> None:
    """What was compiled is in the cache folder now; if that cannot be written, it stays here."""
    if future.cancelled() or future.exception() or _path(key).exists():
        with _submitting:
            if _pending.get(key) is future:
                del _pending[key]


def _key(source: str, arch: str) -> str:
    return sha256("\0".join([digest(), compiler_version(), arch, source]).encode()).hexdigest()[:32]


def _path(key: str) -> Path:
    return cache_folder() / f"{key}.cubin"


def _kept(key: str) -> bytes | None:
    try:
        return _path(key).read_bytes()
    except OSError:
        return None


def _keep(key: str, code: bytes) -> None:
    """Written whole or not at all; a folder that cannot be written is not an error, the next process compiles again."""
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
    except OSError:
        return
