"""The layout of a KV cache: what each layer keeps, in which formats, and the sizes that follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..errors import DtypeError, FormatError
from ..formats import Format, all_formats, get
from ..formats.limits import limits
from ..ops.specs import AttentionSpec, LayerSpec, RecurrentSpec
from ..validation import to_flag, to_size
from .groups import PAGE_TOKENS, LayerGroup, group_layers

F16_MAX = 65504.0
F32_MAX = 3.38e38  # a little less than bf16 can hold


@dataclass(frozen=True)
class Layout:
    """What each layer keeps, in which formats, in pages of how many tokens.

    >>> layout = Layout((AttentionSpec(8, 128, 128), RecurrentSpec(500), None), get("q8_0"), get("q4_0"), rotate=False)
    >>> layout.token_bytes, 8 * 128 * (8.5 + 4.5) / 8, layout.state_bytes
    (1664, 1664.0, 500)
    """

    specs: tuple[LayerSpec, ...]
    k: Format
    v: Format
    rotate: bool  # whether K is rotated before it is packed
    page_tokens: int = PAGE_TOKENS

    @cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        return tuple(self._with_sizes(group) for group in group_layers(self.specs))

    @cached_property
    def group_of(self) -> dict[int, int]:
        """The group of each layer that keeps something."""
        return {layer: number for number, group in enumerate(self.groups) for layer in group.layers}

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all attention layers."""
        return sum(sum(self.row_bytes(spec)) * spec.kv_heads for spec in self._attention)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of a sequence in all recurrent layers."""
        return sum(spec.nbytes for spec in self.specs if isinstance(spec, RecurrentSpec))

    def attention(self, layer: int) -> AttentionSpec:
        spec = self.specs[layer]
        assert isinstance(spec, AttentionSpec)
        return spec

    def row_bytes(self, spec: AttentionSpec) -> tuple[int, int]:
        """Bytes of K and of V of one token and head."""
        return self.k.row_bytes(spec.k_dim), self.v.row_bytes(spec.v_dim)

    def max_values(self, spec: AttentionSpec) -> tuple[float, float]:
        """The largest magnitudes of K and V that cannot overflow."""
        rotation = math.sqrt(spec.k_dim & -spec.k_dim) if self.rotate else 1.0  # may add all values up in one
        return _max_value(self.k) / rotation, _max_value(self.v)

    @property
    def _attention(self) -> list[AttentionSpec]:
        return [spec for spec in self.specs if isinstance(spec, AttentionSpec)]

    def _with_sizes(self, group: LayerGroup) -> LayerGroup:
        if group.is_recurrent:
            return replace(group, page_bytes=self.state_bytes, page_f32_bytes=self.state_bytes)
        specs = [self.attention(layer) for layer in group.layers]
        packed = sum(spec.kv_heads * sum(self.row_bytes(spec)) for spec in specs)
        values = sum(spec.kv_heads * (spec.k_dim + spec.v_dim) for spec in specs)
        return replace(group, page_bytes=self.page_tokens * packed, page_f32_bytes=self.page_tokens * values * 4)


def make_layout(
    specs: Sequence[LayerSpec],
    k: str | Format = "f16",
    v: str | Format | None = None,
    rotate: bool | None = None,
    page_tokens: int = PAGE_TOKENS,
) -> Layout:
    """A checked layout.

    Args:
        specs: What each layer keeps.
        k: Format of K.
        v: Format of V. Defaults to that of K.
        rotate: Whether K is rotated. Defaults to True where K has fewer than 8 bits.
        page_tokens: Tokens of a page.
    """
    k_format = kv_format(k, "k")
    v_format = k_format if v is None else kv_format(v, "v")
    rotates = k_format.bits_per_weight < 8 if rotate is None else to_flag(rotate, "rotate")
    tokens = to_size(page_tokens, "page_tokens", least=1)
    if not isinstance(specs, Sequence):
        raise DtypeError(f"specs must be a list of layer specs, not {type(specs).__name__}")
    return Layout(tuple(map(_checked, specs)), k_format, v_format, rotates, tokens)


def _checked(spec: LayerSpec) -> LayerSpec:
    if isinstance(spec, AttentionSpec):
        sizes = {name: to_size(getattr(spec, name), name, least=1) for name in ("kv_heads", "k_dim", "v_dim")}
        return AttentionSpec(**sizes, window=to_size(spec.window, "window"), chunked=to_flag(spec.chunked, "chunked"))
    if isinstance(spec, RecurrentSpec):
        return RecurrentSpec(to_size(spec.nbytes, "nbytes", least=1))
    if spec is not None:
        raise DtypeError(f"a layer keeps an AttentionSpec, a RecurrentSpec or None, not {type(spec).__name__}")
    return None


def _max_value(fmt: Format) -> float:
    if fmt.is_scalar:
        return min(limits(fmt)[1], F32_MAX)
    return F16_MAX if any(kind == "f16" for _, kind, _ in fmt.fields) else F32_MAX


def kv_format(name: str | Format, what: str) -> Format:
    """A format for K or V.

    >>> kv_format("q4_k", "k")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fewbit.errors.FormatError: k cannot be q4_k; a KV cache takes: f32, f16, bf16, f8_e4m3, q4_0, ..., iq4_nl
    """
    try:
        fmt = get(name)
    except FormatError:
        if not isinstance(name, str):
            raise
        fmt = None
    if fmt is None or not _fits(fmt):
        fitting = ", ".join(f.name for f in all_formats().values() if _fits(f))
        raise FormatError(f"{what} cannot be {fmt or repr(name)}; a KV cache takes: {fitting}")
    return fmt


def _fits(fmt: Format) -> bool:
    """Floats of at most 32 bits, and what can be packed in blocks of 32 values."""
    if fmt.is_scalar:
        return "f" in fmt.name and fmt.bits_per_weight <= 32
    return fmt.placement == "block" and fmt.block == 32
