"""The table of the zoo: one record for each architecture, its sizes as transformers names them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .vocab import BPE_IDS, BPE_SIZE, WORDPIECE_SIZE

TOKENS = {"vocab_size": BPE_SIZE, **{f"{kind}_token_id": BPE_IDS[kind] for kind in ("bos", "eos", "pad")}}
BASE = {
    **TOKENS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
# Half of the heads and of the feed-forward layer, for those that need many layers or experts.
SMALL = BASE | {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32}
MARKS = {"vocab_size": WORDPIECE_SIZE, "pad_token_id": 0}
ENCODER = {
    **MARKS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Record:
    """One model: `name` is the folder, `model` and `config` are classes of transformers."""

    name: str
    model: str
    config: str
    sizes: dict[str, Any]
    arch: str = ""  # `general.architecture`, where it is not the name
    wordpiece: bool = False
    pooling: str = ""  # of an encoder: mean or cls
    seed: int = 0
    mxfp4: bool = False  # experts as gpt-oss keeps them
    converter_options: tuple[str, ...] = ()
    add_to_config: dict[str, Any] = field(default_factory=dict)  # what the converter asks for and transformers drops
    not_in_config: tuple[str, ...] = ()  # what transformers writes and checkpoints do not have


def causal(name: str, family: str, base: dict[str, Any], config: str = "", **sizes: Any) -> Record:
    kept = ("arch", "seed", "mxfp4", "converter_options", "add_to_config", "not_in_config")
    options = {key: sizes.pop(key) for key in kept if key in sizes}
    return Record(name, f"{family}ForCausalLM", config or f"{family}Config", base | sizes, **options)


def rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **values}


# Where heads times their width must be the hidden size.
FLAT = BASE | {"num_attention_heads": 2, "num_key_value_heads": 1}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": rope("default", partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True),
    "converter_options": ("--no-mtp",),
}
NEMOTRON = {key: value for key, value in SMALL.items() if key != "num_hidden_layers"} | {
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "time_step_min": 1e-9,  # transformers bounds steps by it in prompts only, llama.cpp never
}
NEMOTRON_EXPERTS = (
    "num_experts_per_tok",
    "n_routed_experts",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
LATENT = {
    **{key: value for key, value in SMALL.items() if key != "head_dim"},
    "num_key_value_heads": 2,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}

RECORDS = [
    causal("qwen3", "Qwen3", BASE, tie_word_embeddings=True),
    # llama.cpp takes every sixth layer as one without a window.
    causal(
        "gemma3",
        "Gemma3",
        SMALL,
        "Gemma3TextConfig",
        num_hidden_layers=6,
        sliding_window=8,
        query_pre_attn_scalar=16,
        tie_word_embeddings=True,
    ),
    causal("qwen2", "Qwen2", FLAT, tie_word_embeddings=True),
    causal("phi3", "Phi3", FLAT, sliding_window=8),
    causal(
        "phi3-longrope",
        "Phi3",
        FLAT,
        arch="phi3",
        original_max_position_embeddings=16,
        sliding_window=None,
        rope_parameters=rope(
            "longrope",
            short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5],
            long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0],
            original_max_position_embeddings=16,
        ),
    ),
    causal("llama", "Llama", BASE),
    causal("llama-linear", "Llama", BASE, arch="llama", rope_parameters=rope("linear", factor=4.0)),
    causal(
        "llama-llama3",
        "Llama",
        BASE,
        arch="llama",
        rope_parameters=rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
        ),
    ),
    causal(
        "llama-yarn",
        "Llama",
        BASE,
        arch="llama",
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16),
    ),
    causal("mixtral", "Mixtral", BASE, arch="llama", intermediate_size=32, num_local_experts=4, num_experts_per_tok=2),
    causal(
        "qwen3moe",
        "Qwen3Moe",
        SMALL,
        moe_intermediate_size=32,
        num_experts=6,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        tie_word_embeddings=True,
    ),
    causal(
        "gpt-oss",
        "GptOss",
        BASE,
        mxfp4=True,
        intermediate_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16, truncate=False),
    ),
    causal(
        "gpt-oss-bf16",
        "GptOss",
        BASE,
        arch="gpt-oss",
        intermediate_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16, truncate=False),
    ),
    causal(
        "mistral3",
        "Ministral3",
        BASE,
        rope_parameters=rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=16,
            beta_fast=32.0,
            beta_slow=1.0,
            mscale=1.0,
            mscale_all_dim=1.0,
            llama_4_scaling_beta=0.1,
        ),
    ),
    # llama.cpp takes every fourth layer as one without rope.
    causal("smollm3", "SmolLM3", SMALL, num_hidden_layers=4, tie_word_embeddings=True),
    causal(
        "gemma2",
        "Gemma2",
        BASE,
        sliding_window=8,
        tie_word_embeddings=True,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
        query_pre_attn_scalar=16,
    ),
    causal("olmo2", "Olmo2", FLAT),
    causal(
        "olmo3",
        "Olmo3",
        SMALL,
        arch="olmo2",
        num_hidden_layers=4,
        sliding_window=8,
        rope_parameters={
            "full_attention": rope("yarn", factor=4.0, original_max_position_embeddings=16),
            "sliding_attention": rope("default"),
        },
    ),
    causal("starcoder2", "Starcoder2", FLAT, use_bias=True, sliding_window=None, tie_word_embeddings=True),
    causal(
        "granite",
        "Granite",
        FLAT,
        tie_word_embeddings=True,
        embedding_multiplier=3.0,
        logits_scaling=0.5,
        residual_multiplier=0.5,
        attention_multiplier=0.125,
    ),
    Record(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {**TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
        add_to_config={"n_ctx": 64},
    ),
    Record("bert", "BertModel", "BertConfig", ENCODER, wordpiece=True, pooling="mean"),
    Record(
        "nomic-bert",
        "NomicBertModel",
        "NomicBertConfig",
        ENCODER,
        wordpiece=True,
        pooling="mean",
        add_to_config={
            "n_embd": 32,
            "n_inner": 64,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 8192,
            "max_trained_positions": 2048,
            "layer_norm_epsilon": 1e-12,
            "activation_function": "swiglu",
            "causal": False,
            "prenorm": False,
            "qkv_proj_bias": False,
            "mlp_fc1_bias": False,
            "mlp_fc2_bias": False,
            "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": None,
        },
    ),
    Record(
        "modern-bert",
        "ModernBertModel",
        "ModernBertConfig",
        ENCODER
        | {
            **TOKENS,
            "num_hidden_layers": 4,
            "local_attention": 8,
            "cls_token_id": BPE_IDS["bos"],
            "sep_token_id": BPE_IDS["eos"],
        },
        pooling="cls",
        # Checkpoints have both; the converter writes the second as one number.
        add_to_config={"layer_norm_eps": 1e-5, "global_attn_every_n_layers": 3},
    ),
    Record(
        "gemma-embedding",
        "Gemma3TextModel",
        "Gemma3TextConfig",
        SMALL
        | {
            "num_hidden_layers": 6,
            "sliding_window": 8,
            "use_bidirectional_attention": True,
            "query_pre_attn_scalar": 16,
        },
        pooling="mean",
    ),
    causal("qwen35", "Qwen3_5", SMALL, "Qwen3_5TextConfig", num_hidden_layers=4, tie_word_embeddings=True, **DELTA),
    causal(
        "qwen35moe",
        "Qwen3_5Moe",
        SMALL,
        "Qwen3_5MoeTextConfig",
        layer_types=["linear_attention", "full_attention"],
        tie_word_embeddings=True,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        add_to_config={"full_attention_interval": 2},
        **DELTA,
    ),
    causal(
        "lfm2",
        "Lfm2",
        BASE,
        num_hidden_layers=3,
        block_auto_adjust_ff_dim=False,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=["conv", "full_attention", "conv"],
        tie_word_embeddings=True,
    ),
    causal(
        "lfm2moe",
        "Lfm2Moe",
        SMALL,
        num_hidden_layers=3,
        layer_types=["conv", "full_attention", "conv"],
        moe_intermediate_size=32,
        num_dense_layers=1,
        num_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=True,
    ),
    causal(
        "minimax-m2",
        "MiniMaxM2",
        SMALL,
        intermediate_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        rotary_dim=8,
        add_to_config={"rotary_dim": 8, "scoring_func": "sigmoid"},
    ),
    causal(
        "qwen3next",
        "Qwen3Next",
        SMALL,
        layer_types=["linear_attention", "full_attention"],
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        **{**DELTA, "rope_parameters": rope("default", partial_rotary_factor=0.5)},
    ),
    causal(
        "llama4",
        "Llama4",
        SMALL,
        "Llama4TextConfig",
        seed=1,
        num_hidden_layers=4,
        intermediate_size_mlp=64,
        interleave_moe_layer_step=2,
        num_local_experts=5,
        num_experts_per_tok=1,
        attn_scale=0.1,
        rope_parameters=rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
        ),
    ),
    # llama.cpp has no layers that share K and V in a model as small.
    causal(
        "gemma3n",
        "Gemma3n",
        SMALL,
        "Gemma3nTextConfig",
        num_hidden_layers=4,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2,
        activation_sparsity_pattern=[0.6, 0.0, 0.0, 0.9],
        vocab_size_per_layer_input=BPE_SIZE,
        hidden_size_per_layer_input=8,
        laurel_rank=8,
        tie_word_embeddings=True,
    ),
    causal(
        "nemotron_h",
        "NemotronH",
        NEMOTRON,
        layers_block_type=["linear_attention", "mlp", "full_attention"],
        add_to_config={"hybrid_override_pattern": "M-*", "num_hidden_layers": 3},
        not_in_config=("layers_block_type", *NEMOTRON_EXPERTS),
    ),
    causal(
        "nemotron_h_moe",
        "NemotronH",
        NEMOTRON,
        layers_block_type=["linear_attention", "full_attention", "moe"],
        add_to_config={"hybrid_override_pattern": "M*E", "num_hidden_layers": 3},
        not_in_config=("layers_block_type",),
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=32,
        moe_latent_size=32,
        routed_scaling_factor=1.5,
    ),
    causal(
        "granitehybrid",
        "GraniteMoeHybrid",
        SMALL,
        layer_types=["mamba", "attention"],
        add_to_config={"layer_types": ["mamba", "attention"]},  # transformers writes other names than checkpoints have
        shared_intermediate_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=16,
        mamba_n_groups=1,
        mamba_expand=2,
        tie_word_embeddings=True,
        embedding_multiplier=3.0,
        logits_scaling=0.5,
        residual_multiplier=0.5,
        attention_multiplier=0.125,
    ),
    causal(
        "glm4moe",
        "Glm4Moe",
        SMALL,
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        attention_bias=True,
        use_qk_norm=True,
        routed_scaling_factor=1.5,
        num_nextn_predict_layers=0,
    ),
    causal(
        "deepseek2",
        "DeepseekV3",
        LATENT,
        seed=1,
        n_routed_experts=6,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0),
        q_lora_rank=32,
        n_group=2,
        topk_group=1,
        num_nextn_predict_layers=0,
        add_to_config={"scoring_func": "sigmoid"},
    ),
    causal(
        "deepseek32",
        "DeepseekV32",
        LATENT,
        seed=2,
        q_lora_rank=32,
        n_group=2,
        topk_group=1,
        n_routed_experts=6,
        index_topk=64,
        index_head_dim=32,
        index_n_heads=2,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0),
        add_to_config={"scoring_func": "sigmoid"},
    ),
    causal("deepseek2-lite", "DeepseekV2", LATENT, arch="deepseek2", q_lora_rank=None, norm_topk_prob=False),
    causal(
        "gemma4",
        "Gemma4",
        SMALL,
        "Gemma4TextConfig",
        num_hidden_layers=3,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        global_head_dim=32,
        num_kv_shared_layers=1,
        vocab_size_per_layer_input=BPE_SIZE,
        hidden_size_per_layer_input=16,
        final_logit_softcapping=5.0,
        tie_word_embeddings=True,
    ),
    # Layers that share K and V have feed-forward layers of twice the width.
    causal(
        "gemma4-wide",
        "Gemma4",
        SMALL,
        "Gemma4TextConfig",
        arch="gemma4",
        num_hidden_layers=4,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        global_head_dim=32,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        vocab_size_per_layer_input=BPE_SIZE,
        hidden_size_per_layer_input=8,
        tie_word_embeddings=True,
    ),
    causal(
        "gemma4-moe",
        "Gemma4",
        SMALL,
        "Gemma4TextConfig",
        arch="gemma4",
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        global_head_dim=32,
        num_key_value_heads=2,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=32,
        final_logit_softcapping=5.0,
        tie_word_embeddings=True,
    ),
]
