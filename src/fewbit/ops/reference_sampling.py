"""Sampling in NumPy as devices take it: the module of functions that `ops.cpu` has natively."""

from .sampler_chain import sample_chain
from .sampling import log_probabilities, sample, top_tokens

__all__ = ["log_probabilities", "sample", "sample_chain", "top_tokens"]
