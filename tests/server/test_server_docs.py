"""The examples of docs/server.md run, where their clients are installed; every endpoint is named there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from fewbit.llm import LLM
from fewbit.server.app import ROUTES

from ..cli.tiny import write_tiny
from .conftest import Live

PAGE = Path(__file__).parents[2] / "docs/server.md"
BLOCKS = re.findall(r"^```python\nfrom ([\w.]+) (.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    path = write_tiny(tmp_path_factory.mktemp("models") / "model.gguf")
    with LLM(path, ctx=1024, threads=1) as llm:
        found = Live(llm)
        yield found
        found.close()


@pytest.mark.filterwarnings("ignore")  # of clients about themselves
@pytest.mark.parametrize(("client", "code"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_examples_run(client: str, code: str, server: Live, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(client)
    names: dict[str, Any] = {}
    exec(f"from {client} {code}".replace("http://127.0.0.1:8000", server.url), names)
    if "client" in names:
        names["client"].close()
    assert capsys.readouterr().out


def test_every_endpoint_is_named() -> None:
    text = PAGE.read_text()
    paths = [route.path for route in ROUTES if isinstance(route, Route)]
    last = {path: path.split("/{")[0].rpartition("/")[2] for path in paths if path.startswith(("/v1", "/api", "/tok"))}
    assert [path for path, name in last.items() if name not in text] == []
