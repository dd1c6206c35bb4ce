"""tokenizer.json and the files beside it, as the metadata that a GGUF file would hold.

Byte-level BPE, BPE over plain text with byte fallback, Unigram and WordPiece are read. Expressions that cut text into
words go along as they are, in `tokenizer.fewbit.splits`: the text side decides whether it takes them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileError, PathError, TokenizerError
from .safetensors import read_json
from .shown import short

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # tokenizer.ggml.token_type
MAX_TOKENS = 1 << 22
MAX_GAP = 1 << 16  # numbers without a token, beside as many as there are tokens
MAX_DEPTH = 8
SPACE = "\u2581"
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask",
         "cls": "cls"}  # fmt: skip
SAMPLING = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
            "repetition_penalty": "penalty_repeat"}  # fmt: skip

Metadata = dict[str, Any]


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> Metadata:
    """The keys `tokenizer.*` and `general.*` of a checkpoint's folder."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        other = [name for name in ("tokenizer.model", "tekken.json", "vocab.txt") if (folder / name).is_file()]
        hint = f"; {other[0]} alone is not supported" if other else ""
        raise PathError(f"{folder}: tokenizer.json is missing{hint}; download it from the model's repository")
    settings = _read_beside(folder, "tokenizer_config.json")
    generation = _read_beside(folder, "generation_config.json")
    try:
        found = _tokenizer(_object(read_json(path), "tokenizer.json"), settings, config, generation)
        templates = _templates(folder, settings)
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, StopIteration) as error:
        if isinstance(error, FileError):
            raise
        raise TokenizerError(f"{path}: unexpected contents: {error}") from None
    return found | templates | _sampling(generation) | {"general.name": folder.name}


def _tokenizer(
    given: Mapping[str, Any], settings: Mapping[str, Any], config: Mapping[str, Any], generation: Mapping[str, Any]
) -> Metadata:
    model = _object(given.get("model"), "model")
    kind = model.get("type") or ("BPE" if "merges" in model else None)
    readers = {"BPE": _bpe, "Unigram": _unigram, "WordPiece": _wordpiece}
    if kind not in readers:
        raise TokenizerError(f"tokenizers of type {short(kind)} are not supported; supported: {', '.join(readers)}")
    found = readers[kind](given, model)
    tokens, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    added = [_object(entry, "an added token") for entry in given.get("added_tokens") or []]
    _add(tokens, kinds, added)
    ids = {text: number for number, text in enumerate(tokens)}
    found |= _roles(ids, kinds, settings, config, model.get("unk_token"))
    found |= _ends(found, len(tokens), config, generation) | _surroundings(given, found, settings)
    found["tokenizer.fewbit.strip_left"] = [entry["id"] for entry in added if entry.get("lstrip") is True]
    found["tokenizer.fewbit.strip_right"] = [entry["id"] for entry in added if entry.get("rstrip") is True]
    found["tokenizer.ggml.token_type"] = np.asarray(kinds, np.int32)
    return {key: value for key, value in found.items() if not isinstance(value, list) or value}


# The kinds of models


def _bpe(given: Mapping[str, Any], model: Mapping[str, Any]) -> Metadata:
    tokens = _texts(_object(model.get("vocab"), "vocab"))
    kinds = [NORMAL] * len(tokens)
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise TokenizerError(f"BPE with {name} is not supported")
    merges = [_merge(pair) for pair in model.get("merges") or []]
    found = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": merges}
    steps = list(_steps(given.get("pre_tokenizer"), "pretokenizers"))
    if any(step.get("type") == "ByteLevel" for step in steps):
        return found | {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "regex",
            "tokenizer.fewbit.splits": [split for step in steps for split in _splits(step)],
            "tokenizer.fewbit.ignore_merges": model.get("ignore_merges") is True,
        }
    if model.get("byte_fallback") is not True:
        raise TokenizerError("BPE that is neither byte-level nor falls back to bytes is not supported")
    _mark_bytes(tokens, kinds)
    return found | {"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_space_prefix": _prepends(given, steps)}


def _unigram(given: Mapping[str, Any], model: Mapping[str, Any]) -> Metadata:
    entries = model["vocab"]
    tokens, scores = [text for text, _ in entries], np.asarray([float(score) for _, score in entries], np.float32)
    kinds = [NORMAL] * len(tokens)
    if model.get("byte_fallback") is True:
        _mark_bytes(tokens, kinds)
    unknown = model.get("unk_id")
    if not isinstance(unknown, int) or not 0 <= unknown < len(tokens):
        raise TokenizerError(f"unk_id must be the number of a token, it is {short(unknown)}")
    kinds[unknown] = UNKNOWN
    steps = list(_steps(given.get("normalizer"), "normalizers"))
    found: Metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.unknown_token_id": unknown,
        "tokenizer.ggml.add_space_prefix": _prepends(given, list(_steps(given.get("pre_tokenizer"), "pretokenizers"))),
        "tokenizer.ggml.remove_extra_whitespaces": any(step.get("type") in ("Strip", "Replace") for step in steps),
    }
    for step in steps:
        if step.get("type") == "Precompiled" and step.get("precompiled_charsmap"):
            found["tokenizer.ggml.precompiled_charsmap"] = _decoded(step["precompiled_charsmap"])
    return found


def _wordpiece(given: Mapping[str, Any], model: Mapping[str, Any]) -> Metadata:
    prefix = model.get("continuing_subword_prefix", "##")
    tokens = [_word(text, prefix) for text in _texts(_object(model.get("vocab"), "vocab"))]
    normalizer = next((s for s in _steps(given.get("normalizer"), "normalizers") if s["type"] == "BertNormalizer"), {})
    found: Metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens),
        "tokenizer.ggml.normalizer.lowercase": normalizer.get("lowercase", False) is True,
    }
    if isinstance(normalizer.get("strip_accents"), bool):
        found["tokenizer.ggml.normalizer.strip_accents"] = normalizer["strip_accents"]
    return found


def _word(text: str, prefix: str) -> str:
    """A token as GGUF writes it: U+2581 begins one that begins a word."""
    if text.startswith("[") and text.endswith("]"):
        return text
    return text.removeprefix(prefix) if text.startswith(prefix) and text != prefix else SPACE + text


# Parts of them


def _texts(vocab: Mapping[str, Any]) -> list[str]:
    """Tokens by id; ids that are not used get a placeholder."""
    most = _most_tokens(len(vocab))
    if not all(type(number) is int and 0 <= number < most for number in vocab.values()):
        raise TokenizerError(f"ids of {len(vocab)} tokens must be from 0 to {most - 1}")
    tokens = [f"[PAD{number}]" for number in range(max(vocab.values(), default=-1) + 1)]
    for text, number in vocab.items():
        tokens[number] = text
    return tokens


def _most_tokens(given: int) -> int:
    """A limit of token ids, so that a few bytes of a file cannot make lists of millions."""
    return min(MAX_TOKENS, 2 * given + MAX_GAP)


def _add(tokens: list[str], kinds: list[int], added: list[Mapping[str, Any]]) -> None:
    most = _most_tokens(len(tokens) + len(added))
    for entry in added:
        number, text = entry.get("id"), entry.get("content")
        if type(number) is not int or not 0 <= number < most or not isinstance(text, str):
            raise TokenizerError(f"an added token needs an id and a content, it is {short(entry)}")
        gap = range(len(tokens), number + 1)
        tokens += [f"[PAD{i}]" for i in gap]
        kinds += [UNUSED] * len(gap)
        tokens[number] = text
        kinds[number] = CONTROL if entry.get("special") is True else USER_DEFINED


def _merge(pair: Any) -> str:
    if isinstance(pair, str):
        return pair
    left, right = pair
    if " " in left + right:
        raise TokenizerError(f"a merge of tokens with a space, {short(pair)}, is not supported")
    return f"{left} {right}"


def _mark_bytes(tokens: list[str], kinds: list[int]) -> None:
    numbers = {text: number for number, text in enumerate(tokens)}
    for byte in range(256):
        if (number := numbers.get(f"<0x{byte:02X}>")) is not None:
            kinds[number] = BYTE


def _splits(step: Mapping[str, Any]) -> list[str]:
    """The expressions of one step that cuts text."""
    kind = step.get("type")
    if kind == "ByteLevel":
        if step.get("add_prefix_space") is True:
            raise TokenizerError("byte-level BPE that puts a space before each text is not supported")
        return [GPT2_SPLIT] if step.get("use_regex", True) else []
    if kind == "Digits":
        return [r"\p{N}" if step.get("individual_digits") is True else r"\p{N}+"]
    if kind == "Split":
        pattern = _object(step.get("pattern"), "a pattern").get("Regex")
        usual = step.get("behavior") == "Isolated" or (step.get("behavior") == "Removed" and step.get("invert") is True)
        if isinstance(pattern, str) and usual:
            return [pattern]
    raise TokenizerError(f"unsupported pre-tokenizer of type {short(kind)}: {short(dict(step))}")


def _prepends(given: Mapping[str, Any], steps: list[Mapping[str, Any]]) -> bool:
    """Whether a space is put before a text."""
    for step in steps:
        if step.get("type") == "Metaspace":
            return bool(step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True))
    return any(step.get("type") == "Prepend" for step in _steps(given.get("normalizer"), "normalizers"))


def _steps(value: Any, key: str, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """The steps of a sequence, or the only one."""
    if value is None:
        return
    step = _object(value, key)
    if step.get("type") != "Sequence":
        yield step
        return
    if depth > MAX_DEPTH:
        raise TokenizerError(f"{key} are nested more than {MAX_DEPTH} deep")
    for inner in step.get(key) or []:
        yield from _steps(inner, key, depth + 1)


def _decoded(text: Any) -> Any:
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    except (binascii.Error, ValueError, TypeError) as error:
        raise TokenizerError(f"precompiled_charsmap is not base64: {error}") from None


# Special tokens


def _roles(
    ids: Mapping[str, int], kinds: list[int], settings: Mapping[str, Any], config: Mapping[str, Any], unknown: Any
) -> Metadata:
    """Which token has which role: by its text in tokenizer_config.json, else by its number in config.json."""
    found = {}
    for name, role in ROLES.items():
        given = settings.get(f"{name}_token")
        text = given.get("content") if isinstance(given, dict) else given
        if text is None and name == "unk":
            text = unknown
        number = ids.get(text) if isinstance(text, str) else None
        if number is None and f"{name}_token" not in settings:
            number = _first(config.get(f"{name}_token_id"), len(kinds))
        if number is not None:
            found[f"tokenizer.ggml.{role}_token_id"] = number
            if role == "unknown":
                kinds[number] = UNKNOWN
    ends = found.get("tokenizer.ggml.eos_token_id", found.get("tokenizer.ggml.seperator_token_id"))
    return found if ends is None else {**found, "tokenizer.ggml.eos_token_id": ends}  # [SEP] ends texts of encoders


def _first(given: Any, count: int) -> int | None:
    given = given[0] if isinstance(given, list) and given else given
    return given if type(given) is int and 0 <= given < count else None


def _ends(found: Metadata, count: int, config: Mapping[str, Any], generation: Mapping[str, Any]) -> Metadata:
    """All tokens that end the generation, where there are several."""
    given = generation.get("eos_token_id", config.get("eos_token_id"))
    ends = [end for end in (given if isinstance(given, list) else [given]) if _first(end, count) is not None]
    if not ends:
        return {}
    return {"tokenizer.ggml.eos_token_id": found.get("tokenizer.ggml.eos_token_id", ends[0]),
            "tokenizer.fewbit.eos_token_ids": ends}  # fmt: skip


def _surroundings(given: Mapping[str, Any], found: Metadata, settings: Mapping[str, Any]) -> Metadata:
    """Whether BOS and EOS are put around a text: as the post-processor does it, or as tokenizer_config.json says."""
    before, after, is_double = [], [], False
    for step in _steps(given.get("post_processor"), "processors"):
        if step.get("type") == "TemplateProcessing":
            names = [next(iter(entry.items())) for entry in step.get("single") or []]
            at = [kind for kind, _ in names].index("Sequence")
            before += names[:at]
            after += names[at + 1 :]
            pair = [next(iter(entry)) for entry in step.get("pair") or []]
            is_double |= (
                "SpecialToken SpecialToken" in " ".join(pair[pair.index("Sequence") :]) if "Sequence" in pair else False
            )
        if step.get("type") in ("BertProcessing", "RobertaProcessing"):
            before.append(("SpecialToken", step.get("cls")))
            after.append(("SpecialToken", step.get("sep")))
            is_double |= step["type"] == "RobertaProcessing"
    says = [settings.get(f"add_{name}_token") for name in ("bos", "eos")]
    return {
        "tokenizer.ggml.add_bos_token": bool(before) or (says[0] is True and "tokenizer.ggml.bos_token_id" in found),
        "tokenizer.ggml.add_eos_token": bool(after) or says[1] is True,
        **({"tokenizer.ggml.add_sep_token": True} if is_double else {}),
    }


# The files beside it


def _templates(folder: Path, settings: Mapping[str, Any]) -> Metadata:
    """Chat templates: of a file of their own, or of tokenizer_config.json, one or several by name."""
    own = folder / "chat_template.jinja"
    if own.is_file() and own.stat().st_size < 1 << 20:
        return {"tokenizer.chat_template": own.read_bytes().decode("utf-8", "replace")}
    given = settings.get("chat_template")
    if isinstance(given, str):
        return {"tokenizer.chat_template": given}
    found = {}
    for entry in given if isinstance(given, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("template"), str):
            name = entry.get("name")
            found["tokenizer.chat_template" + ("" if name == "default" else f".{name}")] = entry["template"]
    return found


def _sampling(generation: Mapping[str, Any]) -> Metadata:
    if generation.get("do_sample") is False:
        return {}
    given = {SAMPLING[name]: value for name, value in generation.items() if name in SAMPLING}
    return {f"general.sampling.{name}": value for name, value in given.items() if type(value) in (int, float)}


def _read_beside(folder: Path, name: str) -> Mapping[str, Any]:
    path = folder / name
    return _object(read_json(path), name) if path.is_file() else {}


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TokenizerError(f"{what} must be an object, it is {short(value)}")
    return value
