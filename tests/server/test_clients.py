"""Every check of every client that is installed; the table in docs/server.md tells of these checks and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .clients import CLIENTS, PAGE, SCRIPTED, installed, row, scripted_row, serving, table
from .conftest import Live


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(Path(tmp_path_factory.mktemp("models"))) as found:
        yield found


@pytest.mark.filterwarnings("ignore")  # of clients about themselves
@pytest.mark.parametrize(("name", "feature"), [(name, feature) for name in CLIENTS for feature in CLIENTS[name].checks])
def test_clients(server: Live, name: str, feature: str) -> None:
    if installed(CLIENTS[name]) is None:
        pytest.skip(f"{CLIENTS[name].package} is not installed")
    CLIENTS[name].checks[feature](server.url)


def test_the_table_is_that_of_the_checks() -> None:
    lines = table(PAGE.read_text())[2:]
    versions = [line.split("|")[2].strip() or None for line in lines[: len(CLIENTS)]]
    packages = [row(name, found) for name, found in zip(CLIENTS, versions, strict=True)]
    assert lines == packages + [scripted_row(name) for name in SCRIPTED]


@pytest.mark.parametrize("name", SCRIPTED)
def test_scripted_calls_have_tests(name: str) -> None:
    file, checks = SCRIPTED[name]
    text = Path(__file__).with_name(file).read_text()
    assert all(f"def test_{test}" in text for test in checks.values())
