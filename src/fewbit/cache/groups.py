"""Groups: layers that keep alike of a sequence, and so share a table of pages.

All attention layers with the same window are one group; those that see every token come first. All recurrent layers
are one group, the last; its pages are called slots, and a slot holds the state of all these layers.
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
class Group:
    """What `Pages` must know of some layers."""

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


def group_layers(specs: Iterable[LayerSpec]) -> list[Group]:
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
    groups = [Group(tuple(windows[window]), window) for window in sorted(windows)]
    return groups + ([Group(tuple(recurrent), is_recurrent=True)] if recurrent else [])


def pages_by_group(
    groups: Sequence[Group],
    page_tokens: int = PAGE_TOKENS,
    *,
    tokens: int | None = None,
    pages: int | None = None,
    max_seqs: int = MAX_SEQS,
    snapshots: int = SNAPSHOTS,
    step_tokens: int = STEP_TOKENS,
) -> tuple[int, ...]:
    """How many pages each group gets: room for `tokens` in those that keep all of them.

    A window needs no more than what `max_seqs` sequences see and one step writes. Recurrent layers have two slots for
    each sequence, the one that a step reads and the one that it writes, besides `snapshots` and the empty state.

    >>> groups = [Group(), Group(window=64), Group(is_recurrent=True)]
    >>> pages_by_group(groups, 32, tokens=8192, max_seqs=4, snapshots=10)
    (256, 32, 19)
    """
    if (tokens is None) == (pages is None):
        raise ShapeError("the size of a KV cache is given as `tokens` or as `pages`, one of them")
    if tokens is None:
        assert pages is not None
        total = to_size(pages, "pages", least=1)
    else:
        total = -(-to_size(tokens, "tokens", least=1) // page_tokens)
    if total > MAX_PAGES:
        raise ShapeError(f"a KV cache has at most {MAX_PAGES} pages, {total} were asked for")
    seqs = to_size(max_seqs, "max_seqs", least=1)
    slots = 2 * seqs + to_size(snapshots, "snapshots") + 1
    step = -(-to_size(step_tokens, "step_tokens", least=1) // page_tokens)

    def size(group: Group) -> int:
        if group.is_recurrent:
            return slots
        seen = -(-group.window // page_tokens) + 2
        return min(total, seqs * seen + step) if group.window else total

    return tuple(map(size, groups))
