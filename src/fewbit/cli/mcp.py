"""Tools of MCP servers, for `fewbit chat --mcp`: programs that are started, or addresses of servers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, ExtraError, FetchError
from .output import shown

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from mcp import Client

SECONDS = 60.0  # that a server may take to answer


class McpTools:
    """The tools of some servers. Calls are made in the event loop of `portal`.

    Args:
        portal: Runs the clients.
    """

    def __init__(self, portal: BlockingPortal) -> None:
        self.described: list[dict[str, Any]] = []  # as OpenAI's clients describe them
        self._portal = portal
        self._clients: dict[str, Client] = {}

    def add(self, server: str, client: Client) -> None:
        """Add the tools of a server."""
        try:
            tools = self._portal.call(client.list_tools).tools
        except Exception as error:
            raise FetchError(f"the MCP server {shown(server)} does not list its tools: {_reason(error)}") from None
        for tool in tools:
            if tool.name in self._clients:
                raise ArgumentError(f"two MCP servers have a tool {shown(tool.name)!r}; leave one of them out")
            self._clients[tool.name] = client
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            self.described.append({"type": "function", "function": function})

    def __contains__(self, name: str) -> bool:
        return name in self._clients

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The text of what a tool returns, or of its error."""
        try:
            found = self._portal.call(self._clients[name].call_tool, name, arguments)
        except Exception as error:
            return f"Error: {_reason(error)}"
        text = "\n".join(getattr(part, "text", f"({part.type}, which is no text)") for part in found.content)
        return f"Error: {text}" if found.is_error else text


@contextmanager
def open_mcp(servers: Sequence[str]) -> Iterator[McpTools]:
    """Connect to servers: "command arguments" or an address."""
    try:
        from anyio.from_thread import start_blocking_portal
        from mcp import Client, StdioServerParameters
    except ImportError:
        raise ExtraError("--mcp needs the package mcp: pip install 'fewbit[mcp]'") from None
    with start_blocking_portal() as portal, ExitStack() as stack:
        found = McpTools(portal)
        for server in servers:
            target: Any = server
            if not server.startswith(("http://", "https://")):
                command, *args = split_command(server)
                target = StdioServerParameters(command=command, args=args)
            try:
                client = Client(target, read_timeout_seconds=SECONDS)
                connection = portal.wrap_async_context_manager(client)
                connection.__enter__()
            except Exception as error:
                raise FetchError(f"the MCP server {shown(server)} does not answer: {_reason(error)}") from None
            stack.callback(_close, connection)  # it would wrap errors of others in groups
            found.add(server, client)
        yield found


def _close(connection: AbstractContextManager[Any]) -> None:
    with suppress(Exception):  # the server may have ended before
        connection.__exit__(None, None, None)


def split_command(text: str) -> list[str]:
    """A command and its arguments.

    >>> split_command("python server.py --root 'my files'")
    ['python', 'server.py', '--root', 'my files']
    """
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise ArgumentError(f"--mcp {shown(text)}: {error}") from None
    if not found:
        raise ArgumentError(
            "--mcp needs a command or an address, such as 'python server.py' or http://127.0.0.1:9000/mcp"
        )
    return found


def _reason(error: BaseException) -> str:
    """The first error of a group, in a sentence."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split()) or type(error).__name__
