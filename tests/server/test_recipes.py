"""The recipes of the cookbook that need a server: agent.md and extraction.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fewbit.llm import LLM

from .conftest import Live
from .tool_model import write_tool_model

COOKBOOK = Path(__file__).parents[2] / "docs/cookbook"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    path = write_tool_model(tmp_path_factory.mktemp("models") / "model.gguf")
    with LLM(path, ctx=4096, threads=1) as llm:
        found = Live(llm)
        yield found
        found.close()


@pytest.mark.filterwarnings("ignore")  # of clients about themselves
@pytest.mark.parametrize("page", ["agent.md", "extraction.md"])
def test_recipes_run(
    page: str, server: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai")
    monkeypatch.chdir(tmp_path)
    write_tool_model(tmp_path / "model.gguf")
    names: dict[str, Any] = {"__name__": "example"}
    for block in PYTHON.findall((COOKBOOK / page).read_text()):
        exec(compile(block.replace("http://127.0.0.1:8000", server.url), page, "exec", dont_inherit=True), names)
    names["client"].close()
    if "llm" in names:
        names["llm"].close()
    out = capsys.readouterr().out
    assert re.search(r"^(stock|order)\(" if page == "agent.md" else "Oslo|Riga", out)
