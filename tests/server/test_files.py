"""Files of clients: each sees its own, within limits, whatever its name is."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.errors import PathError
from fewbit.llm import LLM
from fewbit.server.files import FileStore

from .conftest import client_of

FILES = "/v1/files"


@pytest.fixture
def client(llm: LLM, tmp_path: Path) -> TestClient:
    return client_of(llm, files_dir=str(tmp_path / "files"))


def upload(client: TestClient, data: bytes = b"{}", name: str = "in.jsonl", purpose: str = "batch") -> Any:
    return client.post(FILES, files={"file": (name, data)}, data={"purpose": purpose})


def test_a_file_comes_and_goes(client: TestClient, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    found = upload(client, data).json()
    assert (found["bytes"], found["filename"]) == (3 << 20, "in.jsonl")
    assert (found["purpose"], found["object"]) == ("batch", "file")
    assert client.get(f"{FILES}/{found['id']}").json() == found
    assert client.get(f"{FILES}/{found['id']}/content").content == data
    assert client.get(FILES).json()["data"] == [found]
    assert (tmp_path / "files").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "files").glob("file-*")} == {0o600}
    assert client.delete(f"{FILES}/{found['id']}").json() == {"id": found["id"], "deleted": True, "object": "file"}
    assert client.get(f"{FILES}/{found['id']}").status_code == 404
    assert [path.name for path in (tmp_path / "files").iterdir()] == [".lock"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\x00b", "x" * 1000, "CON", "..", "é\n.jsonl"])
def test_names_of_clients_are_no_paths(client: TestClient, tmp_path: Path, name: str) -> None:
    found = upload(client, b"{}", name).json()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files"]
    names = sorted(path.name for path in (tmp_path / "files").iterdir())
    assert names == [".lock", found["id"], f"{found['id']}.json"]


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "%2e%2e", "file-1", f"file-{'0' * 32}", "file-x.json"])
@pytest.mark.parametrize("end", ["", "/content"])
def test_ids_are_those_that_were_made_here(client: TestClient, name: str, end: str) -> None:
    assert client.get(f"{FILES}/{name}{end}").status_code == 404


def test_what_is_no_upload_is_refused(client: TestClient) -> None:
    assert "purpose must be batch" in upload(client, purpose="vision").text
    assert "multipart" in client.post(FILES, json={}).text
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    bodies = [b"", b"--x", b"--x\r\n\r\n", b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--", b"\xff" * 100]
    for body in bodies:
        assert client.post(FILES, content=body, headers=kind).status_code == 400
    assert client.post(FILES, content=b"", headers={"Content-Type": "multipart/form-data"}).status_code == 400
    many = [("file", ("a", b"1")), ("file", ("b", b"2"))]
    assert client.post(FILES, files=many, data={"purpose": "batch"}).status_code == 400


def test_limits(llm: LLM, tmp_path: Path) -> None:
    client = client_of(llm, files_dir=str(tmp_path), max_file_bytes=1000, max_files_bytes=1500, max_files=3)
    assert upload(client, b"x" * 1001).status_code == 413
    assert upload(client, b"x" * 200_000).status_code == 413
    assert upload(client, b"x" * 1000).status_code == 200
    assert "together" in upload(client, b"x" * 501).json()["error"]["message"]
    assert [upload(client, b"x").status_code for _ in range(3)] == [200, 200, 413]
    assert len(client.get(FILES).json()["data"]) == 3


def test_each_key_has_its_own(llm: LLM, tmp_path: Path) -> None:
    client = client_of(llm, files_dir=str(tmp_path), api_keys=("key of ada", "key of bob"[::-1]))
    ada, bob = ({"Authorization": f"Bearer {key}"} for key in ("key of ada", "key of bob"[::-1]))
    name = client.post(FILES, files={"file": b"{}"}, data={"purpose": "batch"}, headers=ada).json()["id"]
    for path in (f"{FILES}/{name}", f"{FILES}/{name}/content"):
        assert client.get(path, headers=ada).status_code == 200
        assert client.get(path, headers=bob).status_code == 404
    assert client.get(FILES, headers=bob).json()["data"] == []
    assert client.delete(f"{FILES}/{name}", headers=bob).status_code == 404
    assert client.get(FILES).status_code == 401


def test_pages(client: TestClient) -> None:
    names = [upload(client).json()["id"] for _ in range(3)]
    found = client.get(FILES, params={"limit": 2, "order": "asc"}).json()
    assert (len(found["data"]), found["has_more"]) == (2, True)
    after = client.get(FILES, params={"after": found["last_id"], "order": "asc"}).json()
    assert {one["id"] for one in found["data"] + after["data"]} == set(names)
    assert client.get(FILES, params={"purpose": "batch_output"}).json()["data"] == []
    assert client.get(FILES, params={"limit": 0}).status_code == 400


def test_without_a_folder_there_are_none(llm: LLM) -> None:
    found = client_of(llm).get(FILES)
    assert found.status_code == 404
    assert "--files-dir" in found.json()["error"]["message"]


def test_a_store_survives_what_a_killed_process_left(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 1000, 10)
    kept, lost, bad = (store.add("", "a", "batch", BytesIO(b"abc")) for _ in range(3))
    (tmp_path / f"{lost.id}.json").unlink()
    (tmp_path / f"{bad.id}.json").write_bytes(b'{"owner"')
    (tmp_path / "file-x.json.unfinished").write_bytes(b"")
    (tmp_path / "other").write_bytes(b"")
    with pytest.raises(PathError, match="another server"):
        FileStore(tmp_path, 1000, 10)
    store.close()
    again = FileStore(tmp_path, 1000, 10)
    assert again.owned_by("") == [kept]
    assert not (tmp_path / lost.id).exists()
    assert (tmp_path / "other").exists()
    assert not (tmp_path / "file-x.json.unfinished").exists()
    (tmp_path / "plain").write_bytes(b"")
    with pytest.raises(PathError):
        FileStore(tmp_path / "plain", 1, 1)
