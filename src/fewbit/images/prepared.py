"""An image as an encoder takes it."""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays import Floats, Ints, Longs


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """The patches of an image, and what stands for it in a prompt.

    Args:
        patches: Rows of pixels, (patches, values), of one tile after another.
        tiles: Number of patches of each tile; patches see those of their tile.
        text: What stands in the prompt: the encoder's `token` for each row, and what goes around them.
        grid: Rows and columns of the tokens, where there is one tile.
        axes: (2, patches): row and column of each patch, where the encoder rotates by them.
        spans: First patch and end of what each patch sees, in its tile, where layers have windows.
        added: What is added to the embedding of each patch.
    """

    patches: Floats
    tiles: tuple[int, ...]
    text: str
    grid: tuple[int, int]
    axes: Ints | None = None
    spans: Longs | None = None
    added: Floats | None = None
