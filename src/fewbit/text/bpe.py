"""Byte-pair encoding: text is split into words, and the pieces of a word are merged in the file's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from ..errors import TokenizerError
from .byte_level import BYTE_CHARS, BYTE_TOKENS, SPACE
from .pretokenizers import PreTokenizer
from .vocabulary import Vocabulary, read_texts

_LONG = 1 << 12  # characters
_NOTHING = "\0nothing"  # takes the place of a byte that has no token, so that its neighbours do not merge


class BytePairs:
    """The encoder of vocabularies with `tokenizer.ggml.merges`."""

    adds_space = False

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any], pre: PreTokenizer) -> None:
        merges = split_merges(read_texts(metadata, "tokenizer.ggml.merges"))
        options: dict[str, Any] = {"ignore_merges": pre.whole_words, "byte_fallback": not pre.byte_level}
        ids, self._nothing = vocabulary.ids, None
        if not all(byte in ids for byte in (BYTE_CHARS if pre.byte_level else BYTE_TOKENS)):
            self._nothing = len(vocabulary.tokens)
            ids, options["unk_token"] = {**ids, _NOTHING: self._nothing}, _NOTHING
        self._tokenizer = Tokenizer(merging_model(ids, merges, **options))
        steps: list[Any] = [pre_tokenizers.Split(_regex(split), "isolated") for split in pre.splits]
        if pre.byte_level:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        self._byte_level = pre.byte_level
        lost = bytes(byte for char, byte in BYTE_CHARS.items() if char not in ids)
        self.lost_bytes: bytes | None = lost if pre.byte_level else b"" if self._nothing is None else None

    def __call__(self, text: str) -> list[int]:
        if not self._byte_level:
            text = text.replace(" ", SPACE)
        ids = encode(self._tokenizer, text)
        return ids if self._nothing is None else [token for token in ids if token != self._nothing]


def _regex(split: str) -> Regex:
    try:
        return Regex(split)
    except Exception as error:  # the library has no kind of its own
        raise TokenizerError(f"the pre-tokenizer's expression {split!r} cannot be read: {error}") from None


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text. Long text is encoded as a batch of one: only then does the library release the GIL."""
    if len(text) < _LONG:
        return tokenizer.encode(text, add_special_tokens=False).ids
    return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def merging_model(ids: dict[str, int], merges: Sequence[tuple[str, str]], **options: Any) -> models.BPE:
    """The model of the `tokenizers` library that merges these pairs, the first of them first.

    >>> model = merging_model({"a": 0, "b": 1, "ab": 2}, [("a", "b")])
    >>> [token.id for token in model.tokenize("aab")]
    [0, 2]
    """
    try:
        return models.BPE(ids, merges, **options)
    except BaseException as error:  # the library has no kind of its own, and a panic of it is no Exception
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise TokenizerError(f"the merges do not fit the tokens: {error}") from None
        raise


def split_merges(merges: list[str]) -> list[tuple[str, str]]:
    """The two halves of each merge.

    >>> split_merges(["a b", "ab c"])
    [('a', 'b'), ('ab', 'c')]
    """
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if set(map(len, pairs)) <= {2}:
        return cast(list[tuple[str, str]], pairs)
    return [_split_merge(merge) for merge in merges]


def _split_merge(merge: str) -> tuple[str, str]:
    at = merge.find(" ", 1)
    if at < 0 or at + 1 == len(merge):
        raise TokenizerError(f"a merge is two tokens with a space between them, not {merge!r}")
    return merge[:at], merge[at + 1 :]
