"""The two tiny tokenizers of the zoo: byte-level BPE with a few merges, and WordPiece. Tests import the sizes only."""

from __future__ import annotations

import json
import string
from pathlib import Path

MERGES = [
    "Ġ t",
    "h e",
    "i n",
    "e r",
    "a n",
    "o n",
    "r e",
    "e s",
    "o r",
    "t i",
    "Ġ a",
    "Ġ s",
    "n d",
    "Ġt he",
    "l l",
    "i s",
    "e n",
    "Ġ o",
    "a t",
    "in g",
    "o u",
    "Ġo f",
    "Ġa nd",
    "e d",
]
SPECIALS = ["<|unk|>", "<|bos|>", "<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "it",
    "you",
    "that",
    "he",
    "was",
    "for",
    "on",
    "are",
    "##s",
    "##ing",
    "##ed",
]
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

BPE_SIZE = 256 + len(MERGES) + len(SPECIALS)  # 288
BPE_IDS = {name[2:-2]: BPE_SIZE - len(SPECIALS) + i for i, name in enumerate(SPECIALS)}
WORDPIECE_SIZE = 128


def write_bpe(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pairs = [tuple(merge.split()) for merge in MERGES]
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(pair) for pair in pairs]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    names = {f"{kind}_token": f"<|{kind}|>" for kind in ("unk", "bos", "eos", "pad")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    path = folder / "tokenizer_config.json"  # the converter knows phi3's byte-level tokenizer by this name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "GPT2Tokenizer"}, indent=2) + "\n")


def write_wordpiece(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = string.ascii_lowercase + string.digits
    pieces = [*MARKS, *letters, *string.punctuation, *(f"##{letter}" for letter in letters), *WORDS]
    pieces = pieces[:WORDPIECE_SIZE]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(mark, MARKS.index(mark)) for mark in ("[CLS]", "[SEP]")]
    )
    names = {f"{mark[1:-1].lower()}_token": mark for mark in MARKS}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
