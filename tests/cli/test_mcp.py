"""Calls of tools in a conversation, with real MCP servers."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fewbit.cli.conversation import Conversation, read_messages
from fewbit.cli.mcp import open_mcp
from fewbit.cli.talk import talk
from fewbit.cli.tool_calls import REFUSED, UNKNOWN, ToolCaller
from fewbit.errors import ArgumentError, FetchError
from fewbit.llm import Completion
from fewbit.llm.completion import ToolCall

from .script import Typist

pytest.importorskip("mcp")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the package about itself

SERVER = '''
import sys
from mcp.server import MCPServer

server = MCPServer("numbers")


@server.tool()
def add(x: int, y: int) -> str:
    """Adds two numbers."""
    return str(x + y)


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("it does not work")


if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run()
'''


class Stream:
    def __init__(self, completion: Completion) -> None:
        self.completion, self.prompt_done = completion, 1.0

    def __iter__(self) -> Iterator[str]:
        yield from filter(None, [self.completion.text])

    def close(self) -> None:
        pass


@dataclass
class Model:
    """Answers with calls or texts, in order."""

    answers: list[str | tuple[str, dict[str, Any]]]
    ctx: int = 1000
    asked: list[tuple[list[dict[str, Any]], dict[str, Any]]] = field(default_factory=list)

    def chat(self, messages: list[dict[str, Any]], *, stream: bool, **settings: Any) -> Stream:
        self.asked.append(([*messages], settings))
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return Stream(Completion(answer, [1], "stop"))
        name, arguments = answer
        call = ToolCall(f"c{len(self.asked)}", name, arguments, json.dumps(arguments))
        return Stream(Completion("", [1], "stop", tool_calls=[call]))


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mcp") / "my server.py"
    path.write_text(SERVER)
    return path


@pytest.fixture
def command(script: Path) -> str:
    return shlex.join([sys.executable, str(script)])


ADD = ("add", {"x": 2, "y": 40})


def test_a_call_is_made_when_the_user_agrees(command: str, tmp_path: Path) -> None:
    model, typist = Model([ADD, "It is 42."]), Typist("2 + 40?", "y", f"/save {tmp_path / 'talk.json'}")
    with open_mcp([command]) as tools:
        conversation = Conversation(model, caller=ToolCaller(tools))
        talk(conversation, typist)
    assert typist.out.strip() == "It is 42."
    assert typist.notes[:2] == ['the model calls add({"x": 2, "y": 40}); make this call?', "42"]
    described = {one["function"]["name"]: one["function"] for one in model.asked[0][1]["tools"]}
    assert described["add"]["description"] == "Adds two numbers."
    assert described["add"]["parameters"]["required"] == ["x", "y"]
    _, call, result = model.asked[1][0]
    assert call["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"x": 2, "y": 40}'}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "42"}
    assert read_messages(str(tmp_path / "talk.json")) == conversation.messages


def test_no_call_is_made_without_being_asked(command: str) -> None:
    for lines, said in ((("a", "n"), REFUSED), (("a", ""), REFUSED)):
        model = Model([ADD, "Well."])
        with open_mcp([command]) as tools:
            talk(Conversation(model, caller=ToolCaller(tools)), Typist(*lines))
        assert model.asked[1][0][-1]["content"] == said


def test_always_asks_once_for_each_tool(command: str) -> None:
    model, typist = Model([ADD, ADD, ("fail", {}), "Done."]), Typist("a", "always", "y")
    with open_mcp([command]) as tools:
        talk(Conversation(model, caller=ToolCaller(tools)), typist)
    assert [note for note in typist.notes if "make this call?" in note] == [
        'the model calls add({"x": 2, "y": 40}); make this call?', "the model calls fail({}); make this call?"
    ]  # fmt: skip
    assert 'calls add({"x": 2, "y": 40})' in typist.notes
    assert model.asked[3][0][-1]["content"].startswith("Error: ")


def test_wrong_calls_are_told_to_the_model(command: str) -> None:
    model, typist = Model([("nope", {}), ("add", {"x": "?"}), "Done."]), Typist("a", "y")
    with open_mcp([command]) as tools:
        talk(Conversation(model, caller=ToolCaller(tools)), typist)
    assert model.asked[1][0][-1]["content"] == UNKNOWN
    assert model.asked[2][0][-1]["content"].startswith("Error: ")


def test_a_server_at_an_address(script: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(script), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        with open_mcp([f"http://127.0.0.1:{port}/mcp"]) as tools:
            assert tools.call(*ADD) == "42"
    finally:
        process.kill()
        process.wait()


def test_errors_are_sentences(command: str) -> None:
    for server, kind, said in (
        ("", ArgumentError, "needs a command or an address"),
        ("'open", ArgumentError, "No closing quotation"),
        ("no-such-command-here", FetchError, "does not answer: "),
        (f"{sys.executable} -c pass", FetchError, "does not answer: "),
        ("http://127.0.0.1:9/mcp", FetchError, "does not answer: "),
    ):
        with pytest.raises(kind, match=said) as found, open_mcp([server]):
            pass
        assert "\n" not in str(found.value)
    with pytest.raises(ArgumentError, match="two MCP servers have a tool 'add'"), open_mcp([command, command]):
        pass
