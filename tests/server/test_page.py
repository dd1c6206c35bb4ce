"""How the page is served. What it does is tested in a browser: tests/server/browser."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from fewbit.server import page

FILES = sorted(path for path in page.FOLDER.iterdir() if path.is_file())
SOURCES = [path for path in FILES if path.suffix == ".js"]


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Starlette(routes=page.ROUTES))


def test_every_file_that_the_page_names_is_there(client: TestClient) -> None:
    found = client.get("/")
    assert found.status_code == 200
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    assert page.VERSION not in found.text
    names = re.findall(r'(?:src|href)="([^"#]+)"', found.text)
    assert {"style.css", "app.js"} <= {Path(name).name for name in names}
    for name in names:
        assert client.get(f"/{name}").status_code == 200, name


def test_every_import_is_a_file_of_the_page() -> None:
    for path in SOURCES:
        for name in re.findall(r'^(?:import|export) .*from "(.+)";', path.read_text(), re.M):
            assert name.startswith("./"), (path.name, name)
            assert (page.FOLDER / name).is_file(), (path.name, name)


@pytest.mark.parametrize(
    "path", ["/", "/page/{version}/app.js", "/page/{version}/style.css", "/page/{version}/icon.svg"]
)
def test_the_policy_is_strict(client: TestClient, path: str) -> None:
    headers = client.get(path.format(version=page.load().version)).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_there_is_no_inline_script_or_style() -> None:
    text = (page.FOLDER / page.INDEX).read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))


def test_no_file_takes_html_from_text_or_names_another_host() -> None:
    for path in FILES:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
        assert not re.search(r"https?://[a-z]", text), path


def test_files_are_kept_by_their_hash_and_the_page_is_asked_for_again(client: TestClient) -> None:
    first = client.get("/")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/", headers={"if-none-match": '"other"'}).status_code == 200
    file = client.get(f"/page/{page.load().version}/app.js")
    assert "immutable" in file.headers["cache-control"]
    assert file.headers["content-type"] == "text/javascript; charset=utf-8"


@pytest.mark.parametrize("path", [
    "/page/0123456789abcdef/app.js", "/page/{version}/none.js", "/page/{version}/index.html",
    "/page/{version}/..%2f..%2fapp.py", "/page/{version}/%2e%2e/app.py",
    "/page/{version}/katex/LICENSE",
])  # fmt: skip
def test_what_is_no_file_of_this_version_is_not_found(client: TestClient, path: str) -> None:
    assert client.get(path.format(version=page.load().version)).status_code == 404


def test_the_version_changes_with_any_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(page.FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    same = page.load.__wrapped__()
    (tmp_path / "chat.js").write_text("// other")
    other = page.load.__wrapped__()
    (tmp_path / "katex/katex.min.js").write_text("// other")
    third = page.load.__wrapped__()
    assert same.version == page.load().version
    assert len({same.version, other.version, third.version}) == 3


def test_every_font_of_the_stylesheet_is_served(client: TestClient) -> None:
    styles = (page.FOLDER / "katex/katex.min.css").read_text()
    fonts = set(re.findall(r"url\((fonts/[\w-]+\.woff2)\)", styles))
    assert len(fonts) == styles.count("@font-face") == len(list((page.FOLDER / "katex/fonts").iterdir()))
    for name in fonts:
        found = client.get(f"/page/{page.load().version}/katex/{name}")
        assert found.status_code == 200, name
        assert found.headers["content-type"] == "font/woff2"
        assert found.content.startswith(b"wOF2")


def test_the_formula_setter_keeps_to_the_policy() -> None:
    text = (page.FOLDER / "katex/katex.min.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert "MIT" in (page.FOLDER / "katex/LICENSE").read_text()


def test_files_are_small() -> None:
    for path in FILES:
        assert len(path.read_text().splitlines()) < 400, path
