"""Chains of samplers with native code: what `ops.sampler_chain` does, fast."""

from __future__ import annotations

from struct import Struct

from ... import _native
from ...arrays import Floats, to_floats
from ...errors import DataError
from ..sampler_chain import ChainStep, advance_mirostat
from ..sampler_chain import sample_chain as reference
from ..samplers import SAMPLERS
from ..sampling_arrays import (
    Bias,
    Mask,
    bias_list,
    int_array,
    logit_row,
    logits_error,
    mask_list,
    packed_masks,
    packed_pairs,
    seen_list,
)
from .sampling import top_tokens

_CODES = {name: code for code, name in enumerate(SAMPLERS)}  # the order of `ChainSampler` in csrc/sampler_chain.h
_PACK = Struct("8d").pack


def sample_chain(
    logits: Floats, step: ChainStep, uniform: float, *, bias: Bias | None = None, mask: Mask | None = None
) -> int:
    """As in `ops.sampler_chain`, natively. A chain with a function of the caller takes the slow way."""
    names = [one for one in step.chain.samplers if isinstance(one, str)]
    if len(names) < len(step.chain.samplers):
        return reference(logits, step, uniform, bias=bias, mask=mask, top_tokens=top_tokens)
    row = logit_row(logits)
    dry = step.state.dry
    pairs = None if dry is None else (int_array(dry[0], "tokens of DRY"), to_floats(dry[1], "amounts of DRY"))
    try:
        token, probability = _native.sample_chain(
            row, bytes(map(_CODES.__getitem__, names)), step.params.packed + _packed_chain(step), uniform,
            *packed_pairs(seen_list([step.seen], 1)), *packed_pairs(bias_list([bias], 1)),
            *packed_masks(mask_list([mask], 1, len(row))), *packed_pairs([pairs]),
        )  # fmt: skip
    except ValueError as error:
        raise DataError(str(error)) from None
    if token < 0:
        raise logits_error([(0, -token)])
    advance_mirostat(step, probability)
    return token


def _packed_chain(step: ChainStep) -> bytes:
    chain, state = step.chain, step.state
    excludes = state.xtc_uniform < chain.xtc_probability and chain.xtc_threshold <= 0.5
    return _PACK(
        chain.typical_p, chain.top_n_sigma, excludes, chain.xtc_threshold, chain.mirostat > 0, state.mu,
        chain.dynatemp_range, chain.dynatemp_exponent,
    )  # fmt: skip
