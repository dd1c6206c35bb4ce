"""`fewbit chat --session FILE`: a conversation that goes on in the next run.

FILE holds the messages, as JSON. FILE.kv beside it holds what was computed of them, so that a long conversation goes on
at once; without it the prompt is computed again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FewbitError
from .conversation import Conversation, is_message
from .files import read_bytes, write_text
from .images import has_images

if TYPE_CHECKING:
    from ..llm import LLM

VERSION = 1
MAX_BYTES = 64 << 20


class Session:
    """Keeps a conversation in a file.

    Args:
        path: The file.
        llm: The model that answers.
    """

    def __init__(self, path: str, llm: LLM) -> None:
        self._path, self._llm = Path(path), llm
        self._kv = Path(f"{path}.kv")
        self._fingerprint = llm.engine.cache.fingerprint

    def resume(self, conversation: Conversation) -> str:
        """Go on with the conversation of the file, if there is one. What there is to tell of it."""
        if not self._path.exists():
            return f"a new session, kept in {self._path}"
        data = self._read()
        system = conversation.system
        conversation.messages, conversation.dropped = data["messages"], data["dropped"]
        if system is not None:
            conversation.system = system
        cached = self._load_kv()
        known = f", {cached} tokens of it computed" if cached else ""
        dropped = f"; the model no longer sees the oldest {conversation.dropped}" if conversation.dropped else ""
        return f"{self._path}: {len(conversation.messages)} messages{known}{dropped}"

    def write(self, conversation: Conversation) -> None:
        """Write the messages."""
        data = {
            "fewbit_session": VERSION, "model": self._llm.model_name, "fingerprint": self._fingerprint,
            "dropped": conversation.dropped, "messages": conversation.messages,
        }  # fmt: skip
        write_text(str(self._path), json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def end(self, conversation: Conversation) -> None:
        """Write what was computed too."""
        if conversation.messages or self._path.exists():
            self.write(conversation)
        if conversation.last_prompt is not None and conversation.last is not None:
            messages, options = conversation.last_prompt
            if has_images(messages):  # they are encoded again
                return
            tokens = [*self._llm.chat_prompt(messages, **options), *conversation.last.tokens]
            self._llm.save_prompt(self._kv, tokens)

    def _load_kv(self) -> int:
        if not self._kv.exists():
            return 0
        try:
            return self._llm.load_prompt(self._kv)
        except FewbitError as error:
            raise FewbitError(f"{error}; remove it, and the conversation is computed again") from None

    def _read(self) -> dict[str, Any]:
        """The contents of the file, checked."""
        if self._path.is_file() and self._path.stat().st_size > MAX_BYTES:
            raise FewbitError(f"{self._path}: not a session of fewbit chat: more than {MAX_BYTES >> 20} MB")
        content = read_bytes(str(self._path))
        try:
            data = json.loads(content)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict) or "fewbit_session" not in data:
            raise FewbitError(f"{self._path}: not a session of fewbit chat; give another file, or none")
        if data["fewbit_session"] != VERSION:
            raise FewbitError(f"{self._path}: unsupported version of sessions; fewbit reads version {VERSION}")
        messages, dropped = data.get("messages"), data.get("dropped")
        if (
            not isinstance(messages, list)
            or not all(map(is_message, messages))
            or type(dropped) is not int
            or not 0 <= dropped <= len(messages)
        ):
            raise FewbitError(f"{self._path}: the session is damaged: its messages are not as fewbit writes them")
        if data.get("fingerprint") != self._fingerprint:
            model = str(data.get("model"))[:100]
            raise FewbitError(
                f"{self._path}: the session is one with another model, {model!r}, not {self._llm.model_name!r}; "
                "use that model, or another file"
            )
        return data
