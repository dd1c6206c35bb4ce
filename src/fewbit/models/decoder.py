"""What most decoders are: an embedding, blocks after each other, a norm, and the matrix that gives logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .checkpoint import Checkpoint
from .config import Config
from .layers import LayerNorm, Norm, read_output, read_windows
from .rotary import read_rope, with_axes

Part = Callable[[Ops, Value], Value]  # rows in, rows out


class Decoder:
    """A decoder-only model. `scale` multiplies embeddings, `norm` precedes the logits, `softcap` bounds them."""

    def __init__(
        self,
        file: Checkpoint,
        c: Config,
        blocks: Sequence[Part],
        *,
        scale: float = 1.0,
        norm: Norm | LayerNorm | None = None,
        softcap: float = 0.0,
    ) -> None:
        self.config, self.blk, self.scale, self.softcap = c, blocks, scale, softcap
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.output_norm = norm or Norm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)

    def forward(self, ops: Ops) -> Value:
        logits = ops.linear(self.output_norm(ops, self.rows(ops)[0]), self.output)
        return ops.softcap(logits, self.softcap) if self.softcap else logits

    def rows(self, ops: Ops, taps: Sequence[int] = ()) -> tuple[Value, list[Value]]:
        """The rows after all layers, and those before some of them."""
        x, found = ops.embed(self.token_embd, self.scale), []
        for number, block in enumerate(self.blk):
            if number in taps:
                found.append(x)
            x = block(ops, x)
        return x, found


class UniformDecoder(Decoder, ABC):
    """A decoder whose layers differ in their windows alone. A model says what a block is made of."""

    neox: ClassVar[bool] = True  # how pairs of a head are rotated
    norm: ClassVar[type[Norm] | type[LayerNorm]] = Norm
    alternates: ClassVar[bool] = False  # how pairs are rotated by row and column, where the file says that they are

    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = with_axes(file, read_rope(file, c.k_dim, neox=self.neox), self.alternates)
        blocks = [self.block(file, i, c, rope, window) for i, window in enumerate(read_windows(file, c.layers))]
        super().__init__(file, c, blocks, norm=self.norm(file, "output_norm", c.hidden))

    @abstractmethod
    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Part:
        """A layer of the model; `window` 0: it has none."""


class Block:
    """A pre-norm block: a mixer and a feed-forward layer, each added to the residual stream, scaled.

    `mixer` looks at other tokens: attention, or a recurrent layer. `ffn_norm` is what the file calls the second norm.
    """

    def __init__(
        self,
        file: Checkpoint,
        layer: int,
        c: Config,
        mixer: Part,
        ffn: Part,
        *,
        ffn_norm: str = "ffn_norm",
        norm: type[Norm] | type[LayerNorm] = Norm,
        scale: float = 1.0,
    ) -> None:
        self.mixer, self.ffn, self.scale = mixer, ffn, scale
        self.attn_norm = norm(file, f"blk.{layer}.attn_norm", c.hidden)
        self.ffn_norm = norm(file, f"blk.{layer}.{ffn_norm}", c.hidden)

    def __call__(self, ops: Ops, x: Value) -> Value:
        x = x + self._scaled(ops, self.mixer(ops, self.attn_norm(ops, x)))
        return x + self._scaled(ops, self.ffn(ops, self.ffn_norm(ops, x)))

    def _scaled(self, ops: Ops, x: Value) -> Value:
        return x if self.scale == 1 else ops.scale(x, self.scale)


class Sandwich:
    """A block with norms before and after both attention and the feed-forward layer."""

    def __init__(self, file: Checkpoint, layer: int, c: Config, attn: Part, ffn: Part) -> None:
        name = f"blk.{layer}"
        self.attn, self.ffn = attn, ffn
        self.attn_norm, self.ffn_norm = (Norm(file, f"{name}.{x}_norm", c.hidden) for x in ("attn", "ffn"))
        self.post_attention_norm = Norm(file, f"{name}.post_attention_norm", c.hidden)
        self.post_ffw_norm = Norm(file, f"{name}.post_ffw_norm", c.hidden)

    def __call__(self, ops: Ops, x: Value) -> Value:
        x = x + self.post_attention_norm(ops, self.attn(ops, self.attn_norm(ops, x)))
        return x + self.post_ffw_norm(ops, self.ffn(ops, self.ffn_norm(ops, x)))
