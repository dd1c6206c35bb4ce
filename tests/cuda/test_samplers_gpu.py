"""Chains of samplers, functions and beams on a GPU: what the plain chain draws from its logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.arrays import Floats
from fewbit.devices.batch import Row, Sample
from fewbit.devices.forward import make_batch
from fewbit.llm import LLM
from fewbit.loading import Loaded
from fewbit.models import open_model
from fewbit.ops.sampler_chain import ChainState, ChainStep, SamplerChain, sample_chain
from fewbit.ops.sampling import SamplingParams

from ..cli.tiny import write_tiny
from ..loading import load
from ..models.random_llama import write_llama
from .row_cases import open_gpu

pytestmark = pytest.mark.cuda
PARAMS = SamplingParams(temperature=0.8, top_k=20, top_p=0.95, min_p=0.01)
CHAINS: list[dict[str, Any]] = [
    {"typical_p": 0.9},
    {"top_n_sigma": 1.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02},
    {"mirostat": 2, "mirostat_tau": 3.0},
    {"dynatemp_range": 0.5},
    {"samplers": ["min_p", "temperature", "top_k"]},
    {"samplers": [lambda row: -row, "top_k", "temperature"]},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    open_gpu()
    return write_llama(tmp_path_factory.mktemp("gpu") / "model.gguf", layers=1, format="q8_0")


def steps(loaded: Loaded, samples: list[Sample | None]) -> list[Any]:
    """The results of rows, one for each sample, whose tokens differ."""
    rows = [
        Row(loaded.cache.new(), [3 + number, 7, 11], 1, [] if sample is None else [sample])
        for number, sample in enumerate(samples)
    ]
    if samples[0] is None:
        return [loaded.forward([row]).copy()[-1] for row in rows]
    found: list[Any] = loaded.executor.launch(make_batch(loaded.cache, rows)).fetch()
    return found


def test_chains_draw_from_the_logits(path: Path) -> None:
    """In one batch with a sample of the kernels."""
    small: dict[str, Any] = {"device": "cuda", "max_batched_tokens": 64, "max_seqs": 16, "cache_bytes": 1 << 20}
    loaded = load(open_model(path), batch_invariant=True, **small)
    states = [ChainState(SamplerChain(**chain), 0.0) for chain in CHAINS]
    samples: list[Sample | None] = [Sample(PARAMS, 0.3, chain=state) for state in states]
    logits: list[Floats] = steps(loaded, [None] * (len(CHAINS) + 1))
    found = steps(loaded, [*samples, Sample(SamplingParams(temperature=0), 0.5)])
    for state, row, result in zip(states, logits, found, strict=False):
        own = ChainState(state.chain, 0.0)
        near = {sample_chain(row, ChainStep(PARAMS, own), uniform) for uniform in (0.299, 0.3, 0.301)}
        assert result.tokens[0] in near
        assert state.next_mu == pytest.approx(own.next_mu, abs=0.1)
    assert found[-1].tokens[0] == int(np.argmax(logits[-1]))


def test_beams_and_chains_of_requests(tmp_path: Path) -> None:
    """A model that writes: beams are those of the CPU, chains run step after step."""
    open_gpu()
    path = write_tiny(tmp_path / "tiny.gguf")
    options: dict[str, Any] = {"ctx": 64, "max_seqs": 4, "max_batched_tokens": 32, "batch_invariant": True}
    beams: list[Any] = []
    for device in ("cpu", "cuda"):
        with LLM(path, device=device, **options) as llm:
            beams.append(llm.generate("hello", max_tokens=4, beams=3).tokens)
            chained: Any = llm.generate("hello", max_tokens=4, seed=1, temperature=1, typical_p=0.9, dry_multiplier=1)
            assert len(chained.tokens) == 4
    assert beams[0] == beams[1]
