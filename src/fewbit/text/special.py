"""Token types, and special tokens known by their text: many files do not mark which ones end a turn."""

from __future__ import annotations

from collections.abc import Mapping

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # tokenizer.ggml.token_type

END_ROLES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")  # a token of such a role ends the generation

_END_TEXTS = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> <|eom_id|> <EOT>"
    " _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~["
    " <\uff5cend\u2581of\u2581sentence\uff5c>"
    " <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>"
)
_FILL_IN_TEXTS = (
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <PRE> \u2581<PRE> <|code_prefix|> <|prefix|>"
    " <|fim_suffix|> <fim-suffix> <fim_suffix> <SUF> \u2581<SUF> <|code_suffix|> <|suffix|>"
    " <|fim_middle|> <fim-middle> <fim_middle> <MID> \u2581<MID> <|code_middle|> <|middle|>"
    " <\uff5cfim\u2581begin\uff5c> <\uff5cfim\u2581hole\uff5c> <\uff5cfim\u2581end\uff5c>"
)
_ENDS, _FILL_IN = _END_TEXTS.split(), _FILL_IN_TEXTS.split()


def known_texts() -> tuple[list[str], list[str]]:
    """The texts of tokens that end the generation, and those of all that are control tokens."""
    return [*_ENDS], [*_ENDS, *_FILL_IN]


def mark_control(ids: Mapping[str, int], kinds: bytearray) -> None:
    """Mark known control tokens as such, whatever type the file gives them.

    >>> kinds = bytearray([NORMAL, NORMAL])
    >>> mark_control({"<|im_end|>": 0, "a": 1}, kinds)
    >>> list(kinds) == [CONTROL, NORMAL]
    True
    """
    for text in (*_ENDS, *_FILL_IN):
        if text in ids:
            kinds[ids[text]] = CONTROL
    if _closes(ids, kinds):
        kinds[ids["</s>"]] = CONTROL


def end_tokens(ids: Mapping[str, int], kinds: bytearray) -> set[int]:
    """The tokens that end the generation by their text.

    >>> end_tokens({"<|im_end|>": 0, "a": 1, "</s>": 2}, bytearray([CONTROL, NORMAL, NORMAL]))
    {0}
    """
    ends = {ids[text] for text in _ENDS if text in ids}
    if _closes(ids, kinds):
        ends.add(ids["</s>"])
    if {"<|return|>", "<|call|>"} <= ids.keys() or {"<|calls|>", "<|flush|>"} <= ids.keys():
        ends.discard(ids.get("<|end|>", -1))  # there it ends a message, not the turn
    return ends


def _closes(ids: Mapping[str, int], kinds: bytearray) -> bool:
    """Whether "</s>" ends a text. In some vocabularies it is a piece of HTML."""
    if "</s>" not in ids or "<|tool_response>" in ids or "<|plamo:eos|>" in ids:
        return False
    return kinds[ids["</s>"]] != NORMAL
