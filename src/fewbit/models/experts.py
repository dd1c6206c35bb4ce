"""Mixture of experts: a router chooses experts for each token; shared experts take every token."""

from __future__ import annotations

from ..arrays import Floats
from ..errors import FileError
from ..ops.graph import Value
from ..ops.recorder import Ops
from ..ops.shape_rules import SCORES
from ..ops.specs import Routing
from ..tensor import QuantTensor
from .checkpoint import Checkpoint
from .config import Config
from .layers import FeedForward, Linear


class Experts:
    """Routed experts, and the shared ones if the file has any.

    `score` and `normalize` say how weights are made of the router's scores where the file does not.
    """

    def __init__(
        self,
        file: Checkpoint,
        layer: int,
        c: Config,
        *,
        score: str = "softmax",
        normalize: bool = True,
        kind: str = "silu",
    ) -> None:
        name, count = f"blk.{layer}", file.size("expert_count", most=1 << 14)
        bias = file.vector_or_none(f"{name}.exp_probs_b.bias", count)
        self.kind, self.routing = kind, read_routing(file, count, score, normalize, bias)
        n = file.size("expert_feed_forward_length", default=0, least=0) or c.feed_forward
        self.ffn_gate_inp = Linear(file, f"{name}.ffn_gate_inp", count, c.hidden)
        self.gate = ExpertMatrix(file, f"{name}.ffn_gate_exps", count, n, c.hidden, self.routing)
        self.up = ExpertMatrix(file, f"{name}.ffn_up_exps", count, n, c.hidden, self.routing)
        self.down = ExpertMatrix(file, f"{name}.ffn_down_exps", count, c.hidden, n, self.routing)
        self.shared = read_shared(file, layer, c, n)

    def __call__(self, ops: Ops, x: Value) -> Value:
        out = ops.experts(
            x,
            self.ffn_gate_inp(ops, x),
            gate=self.gate.weight,
            up=self.up.weight,
            down=self.down.weight,
            routing=self.routing,
            kind=self.kind,
            gate_bias=self.gate.bias,
            up_bias=self.up.bias,
            down_bias=self.down.bias,
        )
        return out if self.shared is None else out + self.shared(ops, x)


class ExpertMatrix:
    """A matrix for each expert, and a bias if the file has one."""

    weight: QuantTensor
    bias: Floats | None

    def __init__(self, file: Checkpoint, name: str, count: int, rows: int, columns: int, routing: Routing) -> None:
        self.weight = file.experts(f"{name}.weight", count, rows, columns, used=routing.top_k)
        self.bias = file.array(f"{name}.bias", count, rows) if file.has_tensor(f"{name}.bias") else None


def read_routing(file: Checkpoint, count: int, score: str, normalize: bool, bias: Floats | None) -> Routing:
    """How tokens are routed. With a bias, a group is scored by its two best experts."""
    number = file.size("expert_gating_func", default=0, least=0)
    if number > len(SCORES):
        raise FileError(f"{file.path}: expert_gating_func must be 1 to {len(SCORES)}, it is {number}")
    top_k = file.size("expert_used_count", most=count)
    groups = file.size("expert_group_count", default=0, least=0, most=count) or 1
    top_groups = file.size("expert_group_used_count", default=0, least=0, most=groups) or 1
    if count % groups or count // groups * top_groups < top_k:
        raise FileError(
            f"{file.path}: {top_k} of {count} experts cannot be chosen from {top_groups} of {groups} groups"
        )
    return Routing(
        top_k=top_k,
        score=SCORES[number - 1] if number else score,
        normalize=file.flag("expert_weights_norm", normalize),
        scale=file.number("expert_weights_scale", default=1.0, least=0) or 1.0,
        bias=bias,
        groups=groups,
        top_groups=top_groups,
        group_top=1 if bias is None else 2,
    )


def read_shared(file: Checkpoint, layer: int, c: Config, n: int) -> FeedForward | GatedExpert | None:
    """The shared experts, as one feed-forward layer."""
    count = file.size("expert_shared_count", default=0, least=0)
    rows = file.size("expert_shared_feed_forward_length", default=0, least=0) or count * n
    if file.has_tensor(f"blk.{layer}.ffn_gate_inp_shexp.weight"):
        return GatedExpert(file, f"blk.{layer}", c, rows)
    return FeedForward(file, layer, c, suffix="_shexp", rows=rows) if rows else None


class GatedExpert:
    """A shared expert with a sigmoid gate."""

    def __init__(self, file: Checkpoint, name: str, c: Config, n: int) -> None:
        self.routing = Routing(top_k=1, score="sigmoid", normalize=False)  # among one
        self.gate_inp = Linear(file, f"{name}.ffn_gate_inp_shexp", 1, c.hidden)
        self.gate = ExpertMatrix(file, f"{name}.ffn_gate_shexp", 1, n, c.hidden, self.routing).weight
        self.up = ExpertMatrix(file, f"{name}.ffn_up_shexp", 1, n, c.hidden, self.routing).weight
        self.down = ExpertMatrix(file, f"{name}.ffn_down_shexp", 1, c.hidden, n, self.routing).weight

    def __call__(self, ops: Ops, x: Value) -> Value:
        scores = self.gate_inp(ops, x)
        return ops.experts(x, scores, gate=self.gate, up=self.up, down=self.down, routing=self.routing)
