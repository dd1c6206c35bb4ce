"""Whatever is given for an argument: it is taken, or refused by a FewbitError that is a ValueError or a TypeError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.ops import cpu
from fewbit.ops.sampling import SamplingParams

X = np.ones((2, 64), np.float32)
W = fb.quantize(np.ones((4, 64), np.float32), "q8_0")

WRONG: list[Any] = [
    None, 5, -1, 0, 1 << 70, 1.5, float("nan"), True, "x", "", b"x", "\0", object(), [], {}, (), {1}, [None], ["a"],
    [[1], [1, 2]], [1 << 70], 1j, np.zeros((0, 64)), np.zeros((2, 3)), np.array(None), np.array("a"), np.ones(9, "c8"),
    np.datetime64("now"), slice(1), int, W, fb.quantize_activations(X, "q8_0"), lambda: None,
]  # fmt: skip

CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "quantize": (fb.quantize, {"x": X, "format": "q8_0", "importance": None, "threads": 1}),
    "from_bytes": (fb.QuantTensor.from_bytes, {"buf": bytes(34), "shape": (1, 32), "format": "q8_0"}),
    "format": (fb.format, {"name": "q8_0"}),
    "repack": (fb.repack, {"w": fb.quantize(np.ones((32, 256)), "q4_k"), "threads": 1, "arena": None}),
    "quantize_activations": (
        fb.quantize_activations,
        {"x": X, "format": "q8_0", "threads": 1, "activations": "int8"},
    ),
    "linear": (
        fb.linear,
        {
            "x": X,
            "w": W,
            "out": None,
            "threads": 1,
            "exact": False,
            "bias": None,
            "residual": None,
            "activations": None,
        },
    ),
    "linear_many": (
        fb.linear_many,
        {"x": X, "weights": [W], "outs": None, "threads": 1, "biases": None, "residuals": None, "activations": None},
    ),
    "linear_gated": (
        fb.linear_gated,
        {"x": X, "gate": W, "up": W, "activation": "silu", "out": None, "threads": 1, "activations": None},
    ),
    "SamplingParams": (SamplingParams, {"temperature": 1, "top_k": 1, "top_p": 1, "min_p": 0, "presence_penalty": 0}),
    "use_isa": (cpu.use_isa, {"name": cpu.isa()}),
}


@pytest.mark.parametrize(("name", "argument"), [(name, a) for name, (_, given) in CALLS.items() for a in given])
def test_wrong_arguments_are_errors_of_fewbit(name: str, argument: str) -> None:
    function, given = CALLS[name]
    function(**given)
    refused = 0
    for wrong in WRONG:
        try:
            function(**(given | {argument: wrong}))
        except fb.FewbitError as error:
            assert isinstance(error, ValueError | TypeError), repr(error)  # noqa: PT017
            refused += 1
        except Exception as error:
            pytest.fail(f"{name}({argument}={wrong!r}): {error!r}")
    assert refused
