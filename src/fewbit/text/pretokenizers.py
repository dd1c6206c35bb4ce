r"""How BPE vocabularies cut text into words before they merge, by the name in `tokenizer.ggml.pre`.

To add one, write a line in `_TABLE`: its names, and the regular expressions that cut, each applied to the parts that
the one before it made. What an expression matches becomes a part, and so does what lies between two matches. They are
the expressions that the models were trained with, in Oniguruma's syntax.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TokenizerError


@dataclass(frozen=True)
class PreTokenizer:
    """The expressions that cut, and what else comes with the name."""

    splits: tuple[str, ...]
    whole_words: bool = False  # a word that is a token is taken as it is, without merging
    add_bos: bool = False  # if the file does not say
    byte_level: bool = True  # a character stands for a byte; otherwise words are plain text with U+2581 for a space


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_OTHER}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_OTHER}|{_SPACES}"

# A word of capitals and then small letters; marks and letters without case are both.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_CASED = rf"{_HEAD}{_UPPER}*{_LOWER}+", rf"{_HEAD}{_UPPER}+{_LOWER}*"
_CASED_CONTRACTED = "|".join(f"{word}{_CONTRACTION}?" for word in _CASED)
_OTHER_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_GPT4O = rf"{_CASED_CONTRACTED}|\p{{N}}{{1,3}}|{_OTHER_SLASH}|{_SPACES}"

_NOT_HAN = "&&[^\\p{Han}]]"
_KIMI = "|".join(
    (
        r"\p{Han}+",
        _CASED_CONTRACTED.replace(_UPPER, _UPPER[:-1] + _NOT_HAN).replace(_LOWER, _LOWER[:-1] + _NOT_HAN),
        r"\p{N}{1,3}",
        _OTHER,
        _SPACES,
    )
)

_PUNCTUATED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_DEEPSEEK3_WORDS = rf"{_PUNCTUATED}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3 = rf"{_DEEPSEEK3_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    f"\ufe30-\ufe4f]+|[\u3105-\u312f]+|{_HAN_KANA}"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_DEEPSEEK_LETTERS = (
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+"
)
_DEEPSEEK_MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_WIDE_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"
_LINES = r"[^\n]+|\n+"
# Threes counted from the right. Each match looks ahead to the end of the run: unbounded, that is quadratic.
_THREES = r"\p{N}{1,3}(?=(?>(?:\p{N}{3}){0,99})(?!\p{N}))"

_TABLE: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
    "modern-bert exaone4 mpt olmo jais trillion granite-docling": PreTokenizer((_GPT2,)),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": PreTokenizer((r"\p{N}", _GPT2)),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": PreTokenizer(
        (_LLAMA3,), whole_words=True, add_bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4 glm5": PreTokenizer((_LLAMA3,), whole_words=True),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}"),)),
    "ufakzeka": PreTokenizer((_QWEN2.removeprefix(f"{_CONTRACTION}|"),)),
    "laguna": PreTokenizer((_LINES, _QWEN2)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")), whole_words=True),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer((_QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),)),
    "seed-coder": PreTokenizer((_QWEN2.replace(_OTHER, r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "exaone-moe": PreTokenizer(
        (
            _QWEN2.replace(_WORD, rf"{_HEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+")
            .replace(_OTHER, r" ?[^\s\p{L}\p{N}]+[\r\n/]?")
            .replace(r"\s*[\r\n]+", r"\s*[\r\n]"),
        )
    ),
    "jais-2": PreTokenizer((_LLAMA3.replace(r"\s+(?!\S)|\s+", _WIDE_SPACES),)),
    "deepseek-llm": PreTokenizer((r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_MARKS, r"\s+$", _CJK, r"\p{N}+")),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3)),
    "spark2_5": PreTokenizer(
        (
            r"\p{N}{1,3}",
            _HAN_KANA,
            rf"{_DEEPSEEK3_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        )
    ),
    "youtu": PreTokenizer((_YOUTU, _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}")), whole_words=True),
    "afmoe": PreTokenizer((_THREES, _ASIAN, _DEEPSEEK3)),
    "tekken": PreTokenizer((rf"{'|'.join(_CASED)}|\p{{N}}|{_OTHER_SLASH}|{_SPACES}",), whole_words=True, add_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((_GPT4O,)),
    "granite-embed-multi-97m": PreTokenizer((_GPT4O,), whole_words=True),
    "tiny_aya cohere2moe": PreTokenizer((_THREES, _GPT4O)),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "superbpe": PreTokenizer((_THREES,)),
    "bloom gpt3-finnish poro-chat": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    "gemma4 granite-embed-multi-311m": PreTokenizer((_LINES,), add_bos=True, byte_level=False),
    "sarvam-moe": PreTokenizer((_LINES,), byte_level=False),
}

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: entry for names, entry in _TABLE.items() for name in names.split()}


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """The entry of that name.

    >>> find_pre_tokenizer("smollm").splits[0]
    '\\\\p{N}'
    >>> find_pre_tokenizer("llama-bpe").add_bos
    True
    """
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise TokenizerError(f"unknown pre-tokenizer {name!r} in tokenizer.ggml.pre; known are {known}") from None
