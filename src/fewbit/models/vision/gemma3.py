"""Gemma 3: SigLIP, means of squares of patches, a norm and a product. Tokens of an image see each other."""

from __future__ import annotations

import numpy as np

from ...arrays import Floats
from ...errors import FileError
from ...images import Picture, PreparedImage
from ...ops.graph import Value
from ...ops.recorder import Ops
from ..checkpoint import Checkpoint
from ..transforms import PLUS_ONE
from .adapter import VisionAdapter
from .blocks import VisionNorm, as_tensor, neighbours
from .siglip import SIGLIP_CONFIG, SIGLIP_TENSORS, Siglip

HF = VisionAdapter(
    ("Gemma3ForConditionalGeneration",),
    "gemma3",
    config=SIGLIP_CONFIG
    | {
        "vision.projector.scale_factor": lambda config: (
            config.get("image_size", 224)
            // config.get("patch_size", 16)
            // int(config["whole"].get("mm_tokens_per_image", 256) ** 0.5)
        ),
    },
    tensors=SIGLIP_TENSORS
    | {
        "multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight",
        "multi_modal_projector.mm_soft_emb_norm": ("mm.soft_emb_norm", PLUS_ONE),
    },
    dropped=("head.",),
)


class Model(Siglip):
    placeholder, token, sees_all = "<start_of_image>", "<image_soft_token>", True

    def __init__(self, file: Checkpoint) -> None:
        super().__init__(file, "bilinear")
        c = self.sizes
        self.scale = file.size("vision.projector.scale_factor", default=4, most=64)
        if c.side % self.scale:
            raise FileError(f"{file.path}: {c.side} patches on a side cannot be joined in squares of {self.scale}")
        self.norm = VisionNorm(file, "mm.soft_emb_norm", c.hidden, c.eps)
        self.weight = as_tensor(file.array("mm.input_projection.weight", c.hidden, c.out).T)

    @property
    def joint_tokens(self) -> int:
        return (self.sizes.side // self.scale) ** 2

    def prepare(self, picture: Picture) -> PreparedImage:
        tokens = self.sizes.side // self.scale
        text = f"\n\n<start_of_image>{self.token * tokens**2}<end_of_image>\n\n"
        return PreparedImage(self.square(picture), (self.sizes.side**2,), text, (tokens, tokens))

    def merge(self, hidden: Floats, image: PreparedImage) -> Floats:
        side = self.sizes.side
        means = neighbours(hidden, side, side, self.scale).mean(axis=(2, 3), dtype=np.float32)
        return np.ascontiguousarray(means).reshape(-1, hidden.shape[1])

    def project(self, ops: Ops) -> Value:
        return ops.linear(self.norm(ops, ops.given(self.sizes.hidden)), self.weight)
