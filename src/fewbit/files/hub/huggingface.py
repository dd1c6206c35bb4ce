"""Models of a repository, through huggingface_hub and its cache."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import ExtraError, FetchError, MissingError, PathError
from . import retry
from .checkpoint import fetch_checkpoint, is_checkpoint, refuse_selector
from .folder import MAGIC, Progress, cache_folder, key, make_folder, read_note, refused, size_of, start_of, write_note
from .names import encoder_for, revision_folder, select
from .remote import with_hint

TIMEOUT = 30.0  # seconds for an answer

_SPEC = re.compile(r"hf:(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<selector>[^:]+))?", re.ASCII)


def find_huggingface(spec: str, progress: Progress, offline: bool, encoder: bool = False) -> Path:
    """The file of `hf:org/repo`, `hf:org/repo:file` or `hf:org/repo:quantization`, fetched first if need be.

    With `encoder` the model's image encoder is fetched too, if the repository has one. What was found once is not asked
    for again as long as the files are there: it is kept in a note.
    """
    parsed = _SPEC.fullmatch(spec)
    if not parsed:
        raise MissingError(
            f"{spec!r}: a repository is written hf:org/repo, hf:org/repo:file.gguf or hf:org/repo:q4_k_m"
        )
    repo, selector = parsed["repo"], parsed["selector"]
    note = cache_folder() / "hf" / f"{key(os.environ.get('HF_ENDPOINT', ''), repo, selector or '')}.json"
    known = _known(note, encoder and not offline)
    if known:
        return known
    hub = _library(spec)
    if offline:
        return _cached(hub, repo, selector)  # not noted: the repository may have what fits better
    found = _fetched(hub, repo, selector, progress, encoder)
    with suppress(PathError):  # then it will be asked for again
        make_folder(note.parent)
        write_note(note, {"files": [[str(path), path.stat().st_size] for path in found], "encoder": encoder})
    return found[0]


def _known(note: Path, encoder: bool) -> Path | None:
    """The model that a note tells of. With `encoder`, only if its image encoder was looked for."""
    record = read_note(note)
    files = record.get("files") if record.get("encoder") or not encoder else None
    try:
        whole = isinstance(files, list) and all(size_of(Path(path)) == size for path, size in files)
        return Path(files[0][0]) if whole and files else None  # type: ignore[index]
    except (TypeError, ValueError):  # not what was written there
        return None


def _library(spec: str) -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise ExtraError(f'{spec}: this needs huggingface_hub: pip install "fewbit[hub]" ({error})') from None
    return huggingface_hub


def _fetched(hub: ModuleType, repo: str, selector: str | None, progress: Progress, encoder: bool) -> list[Path]:
    where = f"hf:{repo}"
    info = _asked(hub, where, lambda: hub.HfApi().model_info(repo, timeout=TIMEOUT), progress)
    names = [file.rfilename for file in info.siblings or []]
    if is_checkpoint(names):
        refuse_selector(where, selector)
        paths = fetch_checkpoint(names, lambda name: _download(hub, repo, name, progress), where)
    else:
        files = [*select(names, selector, where).files]
        encoder_file = encoder_for(files[0], names) if encoder else None
        files += [encoder_file] if encoder_file is not None and encoder_file not in files else []
        paths = [_download(hub, repo, name, progress) for name in files]
    if len({revision_folder(path) for path in paths}) > 1:
        raise FetchError(f"{where}: the repository changed while it was fetched; try again")
    return paths


def _download(hub: ModuleType, repo: str, name: str, progress: Progress) -> Path:
    from inspect import signature

    where, (bar, failed) = f"hf:{repo}:{name}", _bar(name, progress)
    # Versions before 1.1 show a bar of their own.
    options = {"tqdm_class": bar} if "tqdm_class" in signature(hub.hf_hub_download).parameters else {}
    progress(name, 0, None)
    try:
        got = _asked(hub, where, lambda: hub.hf_hub_download(repo, name, etag_timeout=TIMEOUT, **options), progress)
    except FetchError:
        if failed:
            raise failed[0] from None
        raise
    path = Path(got)
    start = start_of(path)
    if name.endswith(".gguf") and not start.startswith(MAGIC):
        with suppress(OSError):
            path.resolve().unlink()
            path.unlink(missing_ok=True)
        raise refused(where, start)
    size = path.stat().st_size
    progress(name, size, size)
    return path


def _cached(hub: ModuleType, repo: str, selector: str | None) -> Path:
    """What is in the cache of huggingface_hub, maybe put there by another program."""
    where = f"hf:{repo}"
    try:
        cached = [found for found in hub.scan_cache_dir().repos if (found.repo_type, found.repo_id) == ("model", repo)]
    except hub.errors.CacheNotFound:
        cached = []
    revisions = sorted(
        (r for found in cached for r in found.revisions), key=lambda r: ("main" in r.refs, r.last_modified)
    )
    if not revisions:
        raise FetchError(f"{where}: not in the cache, and fewbit is offline; missing: {selector or 'the repository'}")
    folder = Path(revisions[-1].snapshot_path)
    if selector is None and is_checkpoint(file.name for file in folder.iterdir()):
        return folder / "config.json"
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf") if start_of(file).startswith(MAGIC)]
    try:
        return folder / select(names, selector, where).name
    except MissingError as error:
        raise FetchError(f"{error} (only the cache was searched: fewbit is offline)") from None


def _asked(hub: ModuleType, where: str, question: Callable[[], Any], progress: Progress) -> Any:
    """The library's answer, asked again if the connection broke. Its errors become a FetchError."""
    errors = hub.errors
    try:
        return retry.attempt(question, where, progress, _may_pass, _first_line)
    except errors.GatedRepoError as error:
        raise FetchError(
            f"{where}: access is restricted; ask for it on its page, then log in: `hf auth login` or HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FetchError(
            f"{where}: there is no such repository, or it is private: `hf auth login` or HF_TOKEN"
        ) from error
    except Exception as error:  # of the library, of HTTP or of the system
        raise FetchError(f"{where}: could not be fetched: {with_hint(_first_line(error))}") from error


def _may_pass(error: Exception) -> bool:
    """Whether another try may succeed. Errors are told by name: the HTTP library depends on the version."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in (408, 425, 429) or status >= 500
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"ConnectionError", "TimeoutError", "TransportError", "Timeout", "LocalEntryNotFoundError"})


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _bar(name: str, progress: Progress) -> tuple[type, list[Exception]]:
    """A progress bar for huggingface_hub that shows nothing and reports; and what `progress` raised, if it did."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]

    failed: list[Exception] = []

    class ReportingBar(tqdm):  # type: ignore[misc,type-arg,unused-ignore]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": True})
            self._report(self.n)

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            self._report(self.n)

        def _report(self, done: float) -> None:
            try:
                progress(name, int(done), None if self.total is None else int(self.total))
            except Exception as error:
                failed.append(error)
                raise

    return ReportingBar, failed
