"""The table of models that see: tiny ones of each family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..zoo.records import BASE, SMALL
from ..zoo.vocab import BPE_SIZE
from . import templates


@dataclass(frozen=True)
class VisionRecord:
    """One model: `model` and `config` are classes of transformers."""

    name: str
    model: str
    config: str
    template: str
    specials: tuple[str, ...]  # tokens beside those of the zoo
    text: dict[str, Any]
    vision: dict[str, Any]
    processor: Callable[[Any], Any]  # of a tokenizer
    rest: dict[str, Any] = field(default_factory=dict)  # of config.json, ids of tokens by their texts
    names: dict[str, str] = field(default_factory=dict)  # attributes of the tokenizer
    published: dict[str, str] = field(default_factory=dict)  # prefixes of tensors, as published checkpoints have them


def vocab(count: int) -> int:
    return BPE_SIZE + count


def gemma3(tokenizer: Any) -> Any:
    from transformers import Gemma3ImageProcessorPil, Gemma3Processor

    images = Gemma3ImageProcessorPil(size={"height": 56, "width": 56})
    return Gemma3Processor(images, tokenizer, templates.GEMMA3, image_seq_length=4)


def smolvlm(tokenizer: Any) -> Any:
    from transformers import Idefics3ImageProcessorPil, Idefics3Processor

    images = Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    return Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=templates.SMOLVLM)


SIGLIP = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
TILES = tuple(f"<row_{row}_col_{col}>" for row in (1, 2) for col in (1, 2))

RECORDS = [
    VisionRecord(
        "gemma3",
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        templates.GEMMA3,
        ("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
        SMALL | {"vocab_size": vocab(3), "num_hidden_layers": 6, "sliding_window": 8, "query_pre_attn_scalar": 16,
                 "tie_word_embeddings": True},
        SIGLIP | {"image_size": 56, "patch_size": 14},
        gemma3,
        {"mm_tokens_per_image": 4, "boi_token_index": "<start_of_image>", "image_token_index": "<image_soft_token>",
         "eoi_token_index": "<end_of_image>"},
        {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"},
        {"vision_tower.": "vision_tower.vision_model."},
    ),
    VisionRecord(
        "idefics3",
        "Idefics3ForConditionalGeneration",
        "Idefics3Config",
        templates.SMOLVLM,
        ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *TILES),
        BASE | {"vocab_size": vocab(8), "model_type": "llama", "architectures": ["VLlama3ForCausalLM"]},
        SIGLIP | {"image_size": 32, "patch_size": 8},
        smolvlm,
        {"scale_factor": 2, "image_token_id": "<image>"},
    ),
]  # fmt: skip
