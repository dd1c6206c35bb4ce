"""Streaming detokenizer: whole characters only, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ..errors import TokenizerError
from .tokenizer import Tokenizer


class TextStream:
    """Turns token ids into text, as soon as characters are complete.

    The concatenated results of `feed` and `finish` are what `Tokenizer.decode` returns for all the ids. Of control
    tokens that are left out those in `visible` are not.

    >>> metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "Ã", "©"],
    ...             "tokenizer.ggml.merges": []}
    >>> stream = TextStream(Tokenizer.from_metadata(metadata))
    >>> [stream.feed(token) for token in (0, 1, 2, 1)], stream.finish()
    (['a', '', 'é', ''], '\ufffd')
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special: bool = True,
        continues: bool = False,
        visible: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special, self._visible = skip_special, visible
        self._starts = not continues
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that this token completes."""
        skips = self._skip_special and token not in self._visible
        data, self._starts = self._tokenizer.decode_next(token, self._starts, skips)
        return self._decoder.decode(data)

    def finish(self) -> str:
        """The rest, when no more tokens follow: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Finds the first stop string in text that arrives in parts. Holds back what may be the start of one.

    >>> stop = StopStrings(["END", "\\n\\n"])
    >>> stop.feed("the E"), stop.feed("mu\\n"), stop.feed("\\nis"), stop.found
    ('the ', 'Emu', '', '\\n\\n')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(stops):
            raise TokenizerError(f"stop strings are a list of strings that are not empty, not {stops!r}")
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that is safe to show: none after a stop string."""
        if self.found is not None:
            return ""
        text = self._held + text
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            _, safe, self.found = min(ends)  # the one that ends first, so that it does not matter how the text is cut
        else:
            safe = len(text) - self._start_length(text)
        self._held = text[safe:] if self.found is None else ""
        return text[:safe]

    def finish(self) -> str:
        """The text held back, when no more text follows."""
        held, self._held = self._held, ""
        return held

    def _start_length(self, text: str) -> int:
        """How many characters at the end may be the start of a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
