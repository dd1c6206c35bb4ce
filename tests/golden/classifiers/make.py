"""Makes tiny random rerankers and classifiers, with the logits that transformers computes of pairs of texts.

python -m tests.golden.classifiers.make
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, processors

from tests.zoo.make import randomize
from tests.zoo.records import BASE, ENCODER, TOKENS
from tests.zoo.vocab import BPE_IDS, BPE_SIZE, write_bpe, write_wordpiece

from .pairs import PAIRS

FOLDER = Path(__file__).parent
BPE_ENCODER = ENCODER | TOKENS
MODERN = BPE_ENCODER | {
    "num_hidden_layers": 4, "local_attention": 8, "cls_token_id": BPE_IDS["bos"], "sep_token_id": BPE_IDS["eos"],
    "max_position_embeddings": 128,
}  # fmt: skip
LABELS = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
ONE = {"num_labels": 1}
MODELS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert": ("BertForSequenceClassification", "BertConfig", ENCODER | ONE | {"max_position_embeddings": 128},
             "wordpiece"),
    "bert-labels": ("BertForSequenceClassification", "BertConfig", ENCODER | LABELS | {"max_position_embeddings": 128},
                    "wordpiece"),
    "roberta": ("XLMRobertaForSequenceClassification", "XLMRobertaConfig",
                BPE_ENCODER | ONE | {"pad_token_id": 1, "max_position_embeddings": 130, "type_vocab_size": 1},
                "double"),
    "modern-bert": ("ModernBertForSequenceClassification", "ModernBertConfig",
                    MODERN | ONE | {"classifier_pooling": "mean"}, "single"),
    "qwen3": ("Qwen3ForSequenceClassification", "Qwen3Config", BASE | ONE, "single"),
    "qwen3-judge": ("Qwen3ForCausalLM", "Qwen3Config",
                    BASE | {"vocab_size": BPE_SIZE + 4, "max_position_embeddings": 1024}, "judge"),
}  # fmt: skip


def main() -> None:
    for name, (model, config, sizes, kind) in MODELS.items():
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        torch.manual_seed(1)
        made = getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()
        randomize(made)
        made.to(torch.bfloat16).save_pretrained(folder)
        (write_wordpiece if kind == "wordpiece" else write_bpe)(folder)
        write_pairs(folder, kind)
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        loaded = getattr(transformers, model).from_pretrained(folder, **options).eval()
        np.savez_compressed(folder / "golden.npz", **golden(folder, loaded, kind))


def write_pairs(folder: Path, kind: str) -> None:
    """Says how two texts become one."""
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    if kind == "judge":
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
        tokenizer.add_tokens(["yes", "no"])
    else:
        begin, end = ("[CLS]", "[SEP]") if kind == "wordpiece" else ("<|bos|>", "<|eos|>")
        middle = f"{end} {end}" if kind == "double" else end
        second = ":1" if kind == "wordpiece" else ""
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {middle} $B{second} {end}{second}",
            special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in (begin, end)],
        )
    tokenizer.save(str(path))


@torch.no_grad()
def golden(folder: Path, model: Any, kind: str) -> dict[str, np.ndarray]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found: dict[str, np.ndarray] = {}
    for number, (query, text) in enumerate(PAIRS):
        if kind == "judge":
            tokens, logits = judged(tokenizer, model, query, text)
        else:
            encoded = tokenizer.encode(query, text)
            types = {"token_type_ids": torch.tensor([encoded.type_ids])} if kind == "wordpiece" else {}
            tokens = encoded.ids
            mask = torch.ones(1, len(tokens), dtype=torch.long)
            logits = model(torch.tensor([tokens]), attention_mask=mask, **types).logits[0].numpy()
        found |= {f"tokens{number}": np.array(tokens, np.int32), f"logits{number}": logits}
    alone = tokenizer.encode(PAIRS[2][1])
    if kind != "judge":
        found["alone"] = model(torch.tensor([alone.ids])).logits[0].numpy()
    return found


def judged(tokenizer: Tokenizer, model: Any, query: str, text: str) -> tuple[list[int], np.ndarray]:
    """As the page of Qwen3-Reranker does it."""
    before = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    body = f"<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n"
    parts = (before, f"{body}<Document>: {text}", after)
    tokens = [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False).ids]
    logits = model(torch.tensor([tokens])).logits[0, -1]
    verdicts = [tokenizer.token_to_id("yes"), tokenizer.token_to_id("no")]
    return tokens, torch.log_softmax(logits, 0)[verdicts].numpy()


if __name__ == "__main__":
    main()
