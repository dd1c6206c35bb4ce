"""Nemotron-H and Nemotron Nano: each layer is a state-space scan (Mamba 2), attention, or a feed-forward layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ops.graph import Value
from ..ops.recorder import Ops
from .adapter import DECODER, Adapter, Target, Tensors
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Decoder, Part
from .experts import ExpertMatrix, read_routing
from .granitehybrid import Mamba
from .layers import MLP, Attention, Linear, Norm
from .transforms import SQUEEZED, interleaved_rope, shaped

KIND = "relu2"


def layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """What each layer is; older checkpoints have a letter for each."""
    return list(config.get("hybrid_override_pattern") or config["layers_block_type"])


def has_experts(config: Mapping[str, Any]) -> bool:
    return bool({"E", "moe"} & {*layer_kinds(config)})


_PARTS: dict[str, Target] = {
    "norm": "attn_norm",
    "mixer.in_proj": "ssm_in",
    "mixer.out_proj": "ssm_out",
    "mixer.conv1d.weight": ("ssm_conv1d.weight", SQUEEZED),
    "mixer.conv1d.bias": "ssm_conv1d.bias",
    "mixer.A_log": ("ssm_a", shaped(-1, 1, negative_exp=True)),
    "mixer.D": ("ssm_d", shaped(-1, 1)),
    "mixer.dt_bias": "ssm_dt.bias",
    "mixer.norm": ("ssm_norm", shaped("n_groups", -1)),
    "mixer.q_proj": ("attn_q", interleaved_rope("num_attention_heads")),  # as llama.cpp's converter, without effect
    "mixer.k_proj": ("attn_k", interleaved_rope("num_key_value_heads")),
    "mixer.v_proj": "attn_v",
    "mixer.o_proj": "attn_output",
    "mixer.up_proj": "ffn_up",
    "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp",
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mixer.experts.{e}.up_proj": "ffn_up_exps",
    "mixer.experts.{e}.down_proj": "ffn_down_exps",
    "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
}


def _named(prefix: str) -> Tensors:
    """The tensors below `model` or `backbone`, as checkpoints call it."""
    table: Tensors = {f"{prefix}.embeddings": "token_embd", f"{prefix}.norm_f": "output_norm"}
    for source, target in _PARTS.items():
        name, transform = (target, None) if isinstance(target, str) else target
        full = f"blk.{{i}}.{name}"
        table[f"{prefix}.layers.{{i}}.{source}"] = full if transform is None else (full, transform)
    return table


CONFIG = DECODER | {
    "block_count": lambda config: len(layer_kinds(config)),
    "attention.layer_norm_rms_epsilon": ("layer_norm_epsilon", "rms_norm_eps"),
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "mamba_num_heads",
    "ssm.inner_size": lambda config: config["mamba_num_heads"] * config["mamba_head_dim"],
}
TENSORS: Tensors = {"lm_head": "output"} | _named("model") | _named("backbone")
HF = Adapter(("NemotronHForCausalLM",), config=CONFIG, tensors=TENSORS, fits=lambda config: not has_experts(config))


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        super().__init__(file, c, [Block(file, layer, c, read_mixer(file, layer, c)) for layer in range(c.layers)])


class Block:
    """A norm and a mixer, whose output is added to the residual stream."""

    def __init__(self, file: Checkpoint, layer: int, c: Config, mixer: Part) -> None:
        self.attn_norm, self.mixer = Norm(file, f"blk.{layer}.attn_norm", c.hidden), mixer

    def __call__(self, ops: Ops, x: Value) -> Value:
        return x + self.mixer(ops, self.attn_norm(ops, x))


def read_mixer(file: Checkpoint, layer: int, c: Config) -> Part:
    name = f"blk.{layer}"
    if file.has_tensor(f"{name}.ssm_in.weight"):
        return Mamba(file, layer, c)
    if file.has_tensor(f"{name}.ffn_gate_inp.weight"):
        return PlainExperts(file, layer, c)
    if file.has_tensor(f"{name}.ffn_up.weight"):
        return MLP(file, layer, c, KIND)
    return Attention(file, layer, c, None)


class PlainExperts:
    """Experts without gates beside a shared one; they may work in a narrower space, from which a matrix leads back."""

    def __init__(self, file: Checkpoint, layer: int, c: Config) -> None:
        name, count = f"blk.{layer}", file.size("expert_count", most=1 << 14)
        n, latent = file.size("expert_feed_forward_length"), file.size("moe_latent_size", default=0, least=0)
        bias = file.vector_or_none(f"{name}.exp_probs_b.bias", count)
        self.routing = read_routing(file, count, "sigmoid", True, bias)
        self.ffn_gate_inp = Linear(file, f"{name}.ffn_gate_inp", count, c.hidden)
        self.latent = None
        if latent:
            sizes = {"down": (latent, c.hidden), "up": (c.hidden, latent)}
            self.latent = [Linear(file, f"{name}.ffn_latent_{x}", *size) for x, size in sizes.items()]
        width = latent or c.hidden
        self.up = ExpertMatrix(file, f"{name}.ffn_up_exps", count, n, width, self.routing)
        self.down = ExpertMatrix(file, f"{name}.ffn_down_exps", count, width, n, self.routing)
        shared = file.size("expert_shared_feed_forward_length")
        self.shared_up = Linear(file, f"{name}.ffn_up_shexp", shared, c.hidden)
        self.shared_down = Linear(file, f"{name}.ffn_down_shexp", c.hidden, shared)

    def __call__(self, ops: Ops, x: Value) -> Value:
        rows = self.latent[0](ops, x) if self.latent else x
        out = ops.experts(
            rows, self.ffn_gate_inp(ops, x), up=self.up.weight, down=self.down.weight, routing=self.routing, kind=KIND
        )
        out = self.latent[1](ops, out) if self.latent else out
        return out + self.shared_down(ops, ops.activate(self.shared_up(ops, x), KIND))
