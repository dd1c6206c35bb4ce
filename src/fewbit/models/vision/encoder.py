"""What all image encoders have."""

from __future__ import annotations

from typing import ClassVar, Protocol

from ...arrays import Floats
from ...images import Picture, PreparedImage
from ...ops.graph import Value
from ...ops.recorder import Ops


class VisionModel(Protocol):
    """An encoder of images.

    `token` is the text of the token that stands for each row in a prompt, `placeholder` what chat templates write for a
    whole image. With `sees_all` the tokens of an image see each other in both directions, in the layers that the text
    model says, or in all. With `has_axes` the text model rotates by row and column. The projector gives `parts` blocks
    of columns: embeddings, and what is added between layers.
    """

    token: ClassVar[str]
    placeholder: ClassVar[str]
    has_axes: ClassVar[bool]

    @property
    def sees_all(self) -> bool: ...

    @property
    def joint_tokens(self) -> int:
        """Tokens of the largest image, if they see each other and so must run in one step; else 0."""

    @property
    def width(self) -> int:
        """Values of an embedding."""

    @property
    def parts(self) -> int: ...

    def prepare(self, picture: Picture) -> PreparedImage:
        """The patches of a picture, and its text."""

    def tower(self, ops: Ops) -> Value:
        """Hidden rows of patches; the rows that are given are their pixels."""

    def merge(self, hidden: Floats, image: PreparedImage) -> Floats:
        """The rows that the projector takes."""

    def project(self, ops: Ops) -> Value:
        """Rows in the place of embeddings; the rows that are given are merged ones."""
