"""A terminal for a process, driven by a test."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from pathlib import Path

SECONDS = 120.0  # then something hangs
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """`fewbit` on a terminal of its own; `type` sends keys, `until` waits for text."""

    def __init__(self, *args: str, **env: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "dumb", **env})
            os.execv(sys.executable, [sys.executable, "-m", "fewbit", *args])
        self.seen = b""
        self._at = 0

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C. One that comes after readline has shown its prompt but before it waits is not seen until another."""
        time.sleep(0.3)
        self.type("\x03")
        if not select.select([self._fd], [], [], 10)[0]:
            self.type("\x03")

    def until(self, text: str) -> str:
        """What came up to a text, which is looked for behind the last one."""
        while (end := self.seen.find(text.encode(), self._at)) < 0:
            data = self._read()
            assert data, f"{text!r} did not come: {self.seen[-500:]!r}"
            self.seen += _ESCAPES.sub(b"", data)
        before, self._at = self.seen[self._at : end], end + len(text.encode())
        return before.decode().replace("\r\n", "\n")

    def more(self, count: int) -> None:
        """Wait for so many bytes, whatever they are."""
        end = len(self.seen) + count
        while len(self.seen) < end:
            data = self._read()
            assert data, f"it is over: {self.seen[-500:]!r}"
            self.seen += data

    def end(self) -> int:
        """Wait until it is over; its status."""
        while data := self._read():
            self.seen += data
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bytes:
        assert select.select([self._fd], [], [], SECONDS)[0], f"nothing comes: {self.seen[-500:]!r}"
        try:
            return os.read(self._fd, 4096)
        except OSError:  # the other side was closed
            return b""


def history(cache: Path) -> list[str]:
    """What was typed, as far as it was kept."""
    lines = (cache / "history").read_text().splitlines()
    return [line for line in lines if not line.startswith("_HiStOrY")]
