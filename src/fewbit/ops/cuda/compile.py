"""Kernels compiled at first use by NVRTC, through cuda-core; what was compiled once is kept in the cache folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from ...errors import ExtraError, PathError

INSTALL = "pip install 'fewbit[cuda]'"


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
    core = package("cuda.core")
    compiler_version()
    options = core.ProgramOptions(
        arch=arch,
        std="c++17",
        include_path=include_path(),
        device_as_default_execution_space=True,
        ptxas_options=["-v"] if verbose else None,
    )
    log = StringIO()
    made = core.Program(source, "c++", options).compile("cubin", logs=log)
    return bytes(made.code), log.getvalue()


def cache_folder() -> Path:
    """Where compiled kernels are kept: in FEWBIT_CACHE, else in fewbit's folder of XDG_CACHE_HOME or ~/.cache."""
    own, shared = os.environ.get("FEWBIT_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(os.path.expanduser(own)).absolute() / "cubins"
    if shared and os.path.isabs(shared):
        return Path(shared, "fewbit", "cubins")
    return Path("~/.cache/fewbit/cubins").expanduser()


def cubin(source: str, arch: str) -> bytes:
    """Machine code for a source, from the cache folder where it is there."""
    key = sha256("\0".join([digest(), compiler_version(), arch, source]).encode()).hexdigest()[:32]
    path = cache_folder() / f"{key}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        code, _ = compile_source(source, arch)
        _keep(path, code)
        return code


def compile_all(sources: Iterable[str], arch: str, threads: int | None = None) -> None:
    """Several at once into the cache folder: the compiler uses one core for each."""
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        for _ in pool.map(lambda source: cubin(source, arch), dict.fromkeys(sources)):
            pass


def _keep(path: Path, code: bytes) -> None:
    """Written whole or not at all; a folder that cannot be written is not an error, the next process compiles again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
    except OSError:
        return
