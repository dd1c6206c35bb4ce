"""DeepSeek V3.2: as V3, for contexts that its sparse attention sees as a whole."""

from __future__ import annotations

from dataclasses import replace

from . import deepseek2
from .adapter import Adapter
from .checkpoint import Checkpoint
from .config import MAX_LAYERS

TOP_K = "attention.indexer.top_k"
_INDEXER = "model.layers.{i}.self_attn.indexer"
HF = Adapter(
    ("DeepseekV32ForCausalLM",),
    config={**deepseek2.HF.config, TOP_K: "index_topk", "expert_gating_func": lambda config: 2},
    tensors={
        **deepseek2.HF.tensors,
        f"{_INDEXER}.wq_b": "blk.{i}.indexer.attn_q_b",
        f"{_INDEXER}.wk": "blk.{i}.indexer.attn_k",
        f"{_INDEXER}.k_norm": "blk.{i}.indexer.k_norm",
        f"{_INDEXER}.weights_proj": "blk.{i}.indexer.proj",
    },
    more_layers=True,
)


class Model(deepseek2.Model):
    """A query of sparse attention sees the `top_k` tokens that an indexer finds: all of them, if there are no more."""

    def __init__(self, file: Checkpoint) -> None:
        for layer in range(file.size("block_count", most=MAX_LAYERS)):
            file.skip(f"blk.{layer}.indexer.")
        super().__init__(file)
        if (most := file.size(TOP_K, most=1 << 30)) < self.config.ctx:
            reason = "since beyond them DeepSeek's sparse attention would leave some out, which is not supported"
            self.config = replace(self.config, ctx=most, ctx_reason=reason)
