"""Training of LoRA adapters by torch on packed weights: the base stays in few bits, gradients flow through it."""

from . import packages as packages
from .learning import tune_from_feedback
from .packed import packed_linear
from .trainer import Curve, TrainingOptions
from .tuned import TunedAdapter, tune

__all__ = ["Curve", "TrainingOptions", "TunedAdapter", "packed_linear", "tune", "tune_from_feedback"]
