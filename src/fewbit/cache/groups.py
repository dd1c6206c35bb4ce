"""Groups: layers with the same KV retention, which share a table of pages.

All attention layers with the same window are one group; those without a window come first. All recurrent layers are one
group, the last. Its pages are called slots, and a slot holds the state of all these layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import ShapeError
from ..ops.specs import AttentionSpec, LayerSpec, RecurrentSpec
from ..validation import to_size

PAGE_TOKENS = 32
MAX_PAGES = (1 << 31) - 1  # a page's number has 32 bits
MAX_SEQS = 64
SNAPSHOTS = 32
STEP_TOKENS = 512
ZERO_SLOT = 0  # the state of a sequence without tokens; never written


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a table of pages, or the slots of states."""

    layers: tuple[int, ...] = ()
    window: int = 0  # tokens that each layer sees; 0: all
    is_recurrent: bool = False
    page_bytes: int = 0  # of a page in all these layers, or of a slot
    page_f32_bytes: int = 0

    @property
    def keeps_all(self) -> bool:
        return not self.window and not self.is_recurrent

    def first_seen(self, length: int) -> int:
        """The first position that the token after `length` others sees."""
        return max(0, length - self.window + 1) if self.window else 0

    def first_page(self, pages: int, page_tokens: int) -> int:
        """The first of so many full pages that is needed to go on after them; of recurrent layers the last one."""
        return pages - 1 if self.is_recurrent else self.first_seen(pages * page_tokens) // page_tokens


def group_layers(specs: Iterable[LayerSpec]) -> list[LayerGroup]:
    """Layers by group, without sizes.

    >>> full, windowed = AttentionSpec(1, 64, 64), AttentionSpec(1, 64, 64, window=512)
    >>> [group.layers for group in group_layers([RecurrentSpec(8), windowed, full, None, full])]
    [(2, 4), (1,), (0,)]
    """
    windows: dict[int, list[int]] = {}
    recurrent: list[int] = []
    for layer, spec in enumerate(specs):
        if isinstance(spec, AttentionSpec):
            windows.setdefault(spec.window, []).append(layer)
        elif isinstance(spec, RecurrentSpec):
            recurrent.append(layer)
    groups = [LayerGroup(tuple(windows[window]), window) for window in sorted(windows)]
    return groups + ([LayerGroup(tuple(recurrent), is_recurrent=True)] if recurrent else [])


def pages_by_group(
    groups: Sequence[LayerGroup],
    page_tokens: int = PAGE_TOKENS,
    *,
    tokens: int | None = None,
    pages: int | None = None,
    max_seqs: int = MAX_SEQS,
    snapshots: int = SNAPSHOTS,
    step_tokens: int = STEP_TOKENS,
) -> tuple[int, ...]:
    """Number of pages of each group.

    >>> groups = [LayerGroup(), LayerGroup(window=64), LayerGroup(is_recurrent=True)]
    >>> pages_by_group(groups, 32, tokens=8192, max_seqs=4, snapshots=10)
    (256, 32, 19)

    Args:
        groups: The groups.
        page_tokens: Tokens of a page.
        tokens: Capacity of groups that keep all tokens. Give this or `pages`.
        pages: The same, in pages.
        max_seqs: Sequences at a time. A window needs no more pages than these see; recurrent layers have two slots for
            each, one that a step reads and one that it writes.
        snapshots: Further slots of recurrent layers, besides the empty state.
        step_tokens: New tokens of a step, for which layers with a window have room too.
    """
    if (tokens is None) == (pages is None):
        raise ShapeError("a KV cache needs either `tokens` or `pages` as its size")
    if tokens is None:
        total = to_size(pages, "pages", least=1)
    else:
        total = -(-to_size(tokens, "tokens", least=1) // page_tokens)
    if total > MAX_PAGES:
        raise ShapeError(f"a KV cache has at most {MAX_PAGES} pages, got {total}")
    seqs = to_size(max_seqs, "max_seqs", least=1)
    slots = 2 * seqs + to_size(snapshots, "snapshots") + 1
    step = -(-to_size(step_tokens, "step_tokens", least=1) // page_tokens)

    def size(group: LayerGroup) -> int:
        if group.is_recurrent:
            return slots
        seen = -(-group.window // page_tokens) + 2
        return min(total, seqs * seen + step) if group.window else total

    return tuple(map(size, groups))
