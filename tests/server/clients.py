"""What other people's clients can do with the server: each check makes real calls and raises if something is wrong.

    python -m tests.server.clients [CLIENT]...

runs the checks of these clients, or of all that are installed, and writes their rows of the table in docs/server.md.
Programs that are no packages, such as Open WebUI, are checked by the calls that they make.
Clients that need different versions of the same package are checked one after the other.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fewbit.llm import LLM, Completion, TextDelta

from . import framework_checks, sdk_checks
from .conftest import Live
from .scripted import CALL, quick_ends
from .tool_model import write_tool_model

PAGE = Path(__file__).parents[2] / "docs/server.md"
BEGIN, END = "<!-- clients -->\n", "<!-- /clients -->"
FEATURES = ("chat", "stream", "tools", "structured", "embeddings", "errors")
Check = Callable[[str], None]


class Client(NamedTuple):
    """A client, and what is checked by which function. `package` is its name for pip."""

    package: str
    checks: dict[str, Check]
    note: str = ""


class Caller(LLM):
    """A small model that calls the weather tool if it has it, and ends what a grammar holds early."""

    async def aparts(self, prompt: Any, **options: Any) -> AsyncGenerator[TextDelta, None]:
        text = self.tokenizer.decode(prompt[0])
        last = text.removesuffix("assistant:").strip().splitlines()[-1]
        if "say hi" in text:
            return self._written("Hi there.")
        if '"weather"' in text and last.startswith("user: "):
            return self._written(CALL)
        is_held = options.get("constraint") is not None
        return await super().aparts(prompt, **options, **({"logit_bias": quick_ends(self)} if is_held else {}))

    async def _written(self, text: str) -> AsyncGenerator[TextDelta, None]:
        for part in (text[:7], text[7:]):
            yield TextDelta(0, part, [1])
        yield TextDelta(0, "", [], completion=Completion(text, [1, 1], "stop"))


@contextmanager
def serving(folder: Path) -> Iterator[Live]:
    with Caller(write_tool_model(folder / "tiny.gguf"), ctx=4096, threads=1) as llm:
        found = Live(llm)
        try:
            yield found
        finally:
            found.close()


def _of(module: ModuleType, name: str, *features: str) -> dict[str, Check]:
    return {feature: getattr(module, f"{name}_{feature}") for feature in features or FEATURES}


CLIENTS = {
    "OpenAI": Client("openai", _of(sdk_checks, "openai")),
    "Anthropic": Client("anthropic", _of(sdk_checks, "anthropic", "chat", "stream", "tools", "structured", "errors")),
    "Ollama": Client("ollama", _of(sdk_checks, "ollama")),
    "LiteLLM": Client("litellm", _of(sdk_checks, "litellm"), "with the providers openai, ollama_chat and anthropic"),
    "LangChain": Client("langchain-openai", _of(framework_checks, "langchain")),
    "LlamaIndex": Client("llama-index-llms-openai-like", _of(framework_checks, "llama_index")),
    "llm": Client("llm", _of(framework_checks, "llm", "chat", "stream", "tools", "structured", "errors")),
    "aider": Client("aider-chat", _of(framework_checks, "aider", "chat", "stream", "errors")),
    "instructor": Client(
        "instructor", _of(framework_checks, "instructor", "structured", "errors"), "modes `TOOLS` and `JSON_SCHEMA`"
    ),
    "Pydantic AI": Client(
        "pydantic-ai",
        _of(framework_checks, "pydantic_ai", "chat", "tools", "structured", "errors"),
        "tool and native output",
    ),
}


AGENTS, OPEN_WEBUI = "test_agents.py", "test_open_webui.py"
SCRIPTED = {  # the calls of programs that are not installed: a file of tests, and the tests of each feature
    "Open WebUI": (OPEN_WEBUI, {
        "chat": "titles_tags", "stream": "a_chat_by", "embeddings": "documents_are",
    }),
    "Claude Code": (AGENTS, {"chat": "claude_code_counts", "stream": "claude_code", "tools": "claude_code"}),
    "Codex": (AGENTS, {"stream": "codex", "tools": "codex"}),
}  # fmt: skip


def scripted_row(name: str) -> str:
    """The line of the table for a program whose calls are scripted."""
    file, checks = SCRIPTED[name]
    cells = ["yes" if feature in checks else "" for feature in FEATURES]
    return f"| {name} | | {' | '.join(cells)} | its calls, scripted in `tests/server/{file}` |"


def run_scripted(name: str) -> None:
    file, checks = SCRIPTED[name]
    for feature, test in checks.items():
        print(name, feature, flush=True)
        command = [sys.executable, "-m", "pytest", "-q", str(Path(__file__).with_name(file)), "-k", test]
        if subprocess.run(command, check=False).returncode:
            sys.exit(f"{name}: {feature} failed")


def installed(client: Client) -> str | None:
    """The version of a client, if it is installed."""
    try:
        return version(client.package)
    except PackageNotFoundError:
        return None


def row(name: str, found: str | None) -> str:
    """The line of the table for a client of a version whose checks passed; None: nobody tried."""
    client = CLIENTS[name]
    tried = "yes" if found else "not tried"
    cells = [tried if feature in client.checks else "" for feature in FEATURES]
    return f"| {name} | {found or ''} | {' | '.join(cells)} | {client.note} |"


def table(text: str) -> list[str]:
    """The lines of the table in a page."""
    return text.partition(BEGIN)[2].partition(END)[0].splitlines()


def main() -> None:
    warnings.simplefilter("ignore")
    rows = {line.split("|")[1].strip(): line for line in table(PAGE.read_text())[2:]}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        for name, client in CLIENTS.items():
            found = installed(client) if name in (sys.argv[1:] or CLIENTS) else None
            for feature, check in client.checks.items() if found else ():
                print(name, found, feature, flush=True)
                check(server.url)
            if found or name not in rows:
                rows[name] = row(name, found)
    head = f"| client | version | {' | '.join(FEATURES)} | |\n{'|---' * (len(FEATURES) + 3)}|\n"
    for name in SCRIPTED if not sys.argv[1:] else [one for one in sys.argv[1:] if one in SCRIPTED]:
        run_scripted(name)
        rows[name] = scripted_row(name)
    lines = "".join(f"{rows[name]}\n" for name in [*CLIENTS, *SCRIPTED] if name in rows)
    text = PAGE.read_text()
    PAGE.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}{head}{lines}{END}", text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
