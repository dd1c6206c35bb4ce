"""The table of models that see: tiny ones of each family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import add
from typing import Any

from ..zoo.records import BASE, DELTA, SMALL, rope
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
    transposed: tuple[str, ...] = ()  # ends of names of tensors that these have transposed
    converter_options: tuple[str, ...] = ()  # for the text model
    embeddings: float = 1.0  # factor of the table: small where it is the output too and would outweigh the layers
    add_to_text_config: dict[str, Any] = field(default_factory=dict)  # what published checkpoints say, too


def vocab(count: int) -> int:
    return BPE_SIZE + count


def gemma3(tokenizer: Any) -> Any:
    from transformers import Gemma3ImageProcessorPil, Gemma3Processor

    images = Gemma3ImageProcessorPil(size={"height": 56, "width": 56})
    return Gemma3Processor(images, tokenizer, templates.GEMMA3, image_seq_length=4)


def idefics(side: int) -> Callable[[Any], Any]:
    def make(tokenizer: Any) -> Any:
        from transformers import Idefics3ImageProcessorPil, Idefics3Processor

        images = Idefics3ImageProcessorPil(size={"longest_edge": 2 * side}, max_image_size={"longest_edge": side})
        return Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=templates.SMOLVLM)

    return make


def qwen(patch: int) -> Callable[[Any], Any]:
    def make(tokenizer: Any) -> Any:
        import transformers

        size = {"shortest_edge": 8 * (2 * patch) ** 2, "longest_edge": 24 * (2 * patch) ** 2}
        images = transformers.Qwen2VLImageProcessorPil(patch_size=patch, size=size)
        return ImagesAndText(images, tokenizer, templates.QWEN)

    return make


def pixtral(tokenizer: Any) -> Any:
    from transformers import PixtralImageProcessorPil

    images = PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 16, "width": 16})
    return PixtralImagesAndText(images, tokenizer, templates.PIXTRAL)


def llava(tokenizer: Any) -> Any:
    from transformers import PixtralImageProcessorPil

    images = PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 8, "width": 8})
    return PixtralImagesAndText(images, tokenizer, templates.PIXTRAL, side=8)


def gemma4(tokenizer: Any) -> Any:
    from transformers import Gemma4ImageProcessorPil

    images = Gemma4ImageProcessorPil(patch_size=4)  # GGUF files hold no other limits than these
    return Gemma4ImagesAndText(images, tokenizer, templates.GEMMA4)


class ImagesAndText:
    """A processor whose class needs torchvision, made of its image processor and its text: Qwen's."""

    token = "<|image_pad|>"

    def __init__(self, images: Any, tokenizer: Any, template: str, side: int = 16) -> None:
        self.images, self.tokenizer, self.template, self.side = images, tokenizer, template, side

    def save_pretrained(self, folder: Any) -> None:
        self.images.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        text: str = self.tokenizer.apply_chat_template(messages, chat_template=self.template, tokenize=False, **options)
        return text

    def __call__(self, images: Any, text: str, **_: Any) -> dict[str, Any]:
        import torch

        found = self.images(images, return_tensors="pt")
        first, *rest = text.split(self.token)
        text = first + "".join(map(add, self.texts(found), rest))
        ids = self.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **self.others(ids), **found}

    def texts(self, found: Any) -> list[str]:
        """What stands for each image."""
        return [self.token * (rows * columns // 4) for _, rows, columns in found["image_grid_thw"].tolist()]

    def others(self, ids: Any) -> dict[str, Any]:
        return {"mm_token_type_ids": (ids == self.tokenizer.convert_tokens_to_ids(self.token)).int()}


class Gemma4ImagesAndText(ImagesAndText):
    token = "<|image|>"

    def texts(self, found: Any) -> list[str]:
        return [f"<|image>{self.token * count}<image|>" for count in found.pop("num_soft_tokens_per_image")]


class PixtralImagesAndText(ImagesAndText):
    token = "[IMG]"

    def texts(self, found: Any) -> list[str]:
        sizes = [(height // self.side, width // self.side) for height, width in found["image_sizes"].tolist()]
        return ["[IMG_BREAK]".join(["[IMG]" * columns] * rows) + "[IMG_END]" for rows, columns in sizes]

    def others(self, ids: Any) -> dict[str, Any]:
        return {}


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
        idefics(32),
        {"scale_factor": 2, "image_token_id": "<image>"},
    ),
    VisionRecord(  # with tiles that are no whole patches, as the largest of the published ones has
        "smolvlm",
        "SmolVLMForConditionalGeneration",
        "SmolVLMConfig",
        templates.SMOLVLM,
        ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *TILES),
        BASE | {"vocab_size": vocab(8), "model_type": "llama", "architectures": ["VLlama3ForCausalLM"]},
        SIGLIP | {"image_size": 36, "patch_size": 8},
        idefics(36),
        {"scale_factor": 2, "image_token_id": "<image>"},
    ),
]  # fmt: skip

QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN_IDS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
QWEN_TEXT = BASE | MROPE | {"vocab_size": vocab(4)}
QWEN2_TEXT = {key: value for key, value in QWEN_TEXT.items() if key != "head_dim"} | {"num_attention_heads": 2}
QWEN3_VISION = {
    "depth": 3,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_heads": 2,
    "patch_size": 8,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 2],
}
# Attention rotates half of a head; three pairs of eight are rows, three columns, but the last of these is beyond the
# end, as with the sections of the published models.
QWEN35_ROPE = rope("default", partial_rotary_factor=0.5, mrope_section=[2, 3, 3], mrope_interleaved=True)
QWEN35_TEXT = {
    **{key: value for key, value in (SMALL | DELTA).items() if key not in ("converter_options", "num_hidden_layers")},
    "vocab_size": vocab(4), "head_dim": 32, "rope_parameters": QWEN35_ROPE, "num_hidden_layers": 2,
}  # fmt: skip
QWEN35_VISION = {key: value for key, value in QWEN3_VISION.items() if key != "deepstack_visual_indexes"}
RECORDS += [
    VisionRecord(
        "qwen2vl_merger", "Qwen2VLForConditionalGeneration", "Qwen2VLConfig", templates.QWEN, QWEN_TOKENS, QWEN2_TEXT,
        {"depth": 3, "embed_dim": 24, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": 8},
        qwen(8), QWEN_IDS,
    ),
    VisionRecord(
        "qwen2_5vl_merger", "Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig", templates.QWEN, QWEN_TOKENS,
        QWEN2_TEXT,
        {"depth": 4, "hidden_size": 24, "intermediate_size": 40, "num_heads": 2, "patch_size": 14,
         "out_hidden_size": 32, "fullatt_block_indexes": [1, 3]},
        qwen(14), QWEN_IDS,
    ),
    VisionRecord(
        "qwen3vl_merger", "Qwen3VLForConditionalGeneration", "Qwen3VLConfig", templates.QWEN, QWEN_TOKENS,
        QWEN_TEXT | {"num_hidden_layers": 3}, QWEN3_VISION, qwen(8), QWEN_IDS,
    ),
    VisionRecord(
        "qwen3vl_moe", "Qwen3VLMoeForConditionalGeneration", "Qwen3VLMoeConfig", templates.QWEN, QWEN_TOKENS,
        QWEN_TEXT | {"num_hidden_layers": 3, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
        QWEN3_VISION, qwen(8), QWEN_IDS, transposed=("experts.gate_up_proj", "experts.down_proj"),
    ),
    VisionRecord(
        "qwen35", "Qwen3_5ForConditionalGeneration", "Qwen3_5Config", templates.QWEN, QWEN_TOKENS,
        QWEN35_TEXT | {"num_hidden_layers": 4, "tie_word_embeddings": True},
        QWEN35_VISION, qwen(8), QWEN_IDS | {"tie_word_embeddings": True}, converter_options=("--no-mtp",),
    ),
    VisionRecord(
        "qwen35moe", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeConfig", templates.QWEN, QWEN_TOKENS,
        QWEN35_TEXT | {"layer_types": ["linear_attention", "full_attention"], "moe_intermediate_size": 16,
                       "shared_expert_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
        QWEN35_VISION, qwen(8), QWEN_IDS, converter_options=("--no-mtp",),
        add_to_text_config={"full_attention_interval": 2},
    ),
    VisionRecord(
        "pixtral", "Mistral3ForConditionalGeneration", "Mistral3Config", templates.PIXTRAL,
        ("[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        BASE | {"vocab_size": vocab(5), "model_type": "mistral", "sliding_window": None, "rms_norm_eps": 1e-5},
        {"model_type": "pixtral", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "head_dim": 12,
         "num_attention_heads": 2, "patch_size": 8, "image_size": 64, "hidden_act": "silu"},
        pixtral, {"spatial_merge_size": 2, "image_token_index": "[IMG]", "vision_feature_layer": -1},
    ),
]  # fmt: skip

RECORDS += [
    # What the community's checkpoint of Pixtral is: no squares are joined, the projector has biases.
    VisionRecord(
        "llava_pixtral", "LlavaForConditionalGeneration", "LlavaConfig", templates.PIXTRAL,
        ("[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        BASE | {"vocab_size": vocab(5), "model_type": "mistral", "sliding_window": None, "rms_norm_eps": 1e-5},
        {"model_type": "pixtral", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "head_dim": 12,
         "num_attention_heads": 2, "patch_size": 8, "image_size": 64, "hidden_act": "gelu"},
        llava, {"image_token_index": "[IMG]", "vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    ),
]  # fmt: skip

GEMMA4_TOKENS = ("<|image>", "<|image|>", "<image|>")
GEMMA4_IDS = {"boi_token_id": "<|image>", "image_token_id": "<|image|>", "eoi_token_id": "<image|>",
              "tie_word_embeddings": True, "audio_config": None}  # fmt: skip
GEMMA4_TEXT = SMALL | {
    "vocab_size": vocab(3), "num_hidden_layers": 4, "sliding_window": 16, "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "final_logit_softcapping": 5.0,
    "max_position_embeddings": 1024, "pad_token_id": 0, "tie_word_embeddings": True,
    "use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0,
}  # fmt: skip
GEMMA4_VISION = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 12, "patch_size": 4, "position_embedding_size": 840,
}  # fmt: skip
RECORDS += [
    VisionRecord(
        "gemma4", "Gemma4ForConditionalGeneration", "Gemma4Config", templates.GEMMA4, GEMMA4_TOKENS, GEMMA4_TEXT,
        GEMMA4_VISION | {"standardize": True}, gemma4, GEMMA4_IDS, embeddings=0.25,
    ),
    # Limits around products, and inputs of layers, which have a row of their own for images.
    VisionRecord(
        "gemma4_limits", "Gemma4ForConditionalGeneration", "Gemma4Config", templates.GEMMA4, GEMMA4_TOKENS,
        GEMMA4_TEXT | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": vocab(3),
                       "num_kv_shared_layers": 2},
        GEMMA4_VISION | {"use_clipped_linears": True}, gemma4, GEMMA4_IDS, embeddings=0.25,
    ),
]  # fmt: skip
