"""What a request must give whatever else runs: computed from the whole text at each step, without engine or cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np

from fewbit.devices.batch import Executor
from fewbit.engine.constraint import Constraint
from fewbit.engine.engine import Engine
from fewbit.ops import sampling
from fewbit.ops.sampling import SamplingParams

from .toy import Toy, logits_of

WARM = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)


def alone(
    prompt: Sequence[int],
    max_tokens: int,
    seed: int = 0,
    *,
    params: SamplingParams = WARM,
    eos_ids: Sequence[int] = (),
    limit: int = 64,
    vocab: int = 40,
    constraint: Constraint | None = None,
) -> tuple[list[int], str]:
    """The output and the reason of its end."""
    tokens, uniform = list(prompt), Random(seed).random
    for _ in range(min(max_tokens, limit - len(prompt))):
        output = tokens[len(prompt) :]
        counts = Counter(dict.fromkeys(prompt, 0))
        counts.update(output)
        seen = np.array(list(counts), np.int32), np.array(list(counts.values()), np.int32)
        masks = None if constraint is None else [constraint.mask()]
        chosen, _ = sampling.sample(logits_of(tokens, vocab)[-1:], [params], [uniform()], [seen], masks=masks)
        if int(chosen[0]) in eos_ids:
            return output, "stop"
        tokens.append(int(chosen[0]))
        if constraint is not None:
            constraint.accept(tokens[-1])
            if constraint.is_finished:
                return tokens[len(prompt) :], "stop"
    return tokens[len(prompt) :], "length"


def make_engine(toy: Toy, eos_ids: Sequence[int] = (), max_seqs: int = 64, executor: Executor | None = None) -> Engine:
    return Engine(executor or toy, toy.cache, toy.ctx, eos_ids, max_seqs=max_seqs)


def run(engine: Engine, steps: int = 5000) -> None:
    """Step to the end."""
    for _ in range(steps):
        if not engine.step():
            return
    raise AssertionError(f"there is no end after {steps} steps: {engine.stats()}")


def is_clean(toy: Toy) -> bool:
    """Whether all pages were released."""
    return toy.cache.stats().used == 0
