"""Experts on a GPU against `ops/numpy.py` and `ops/experts.py`: fresh data, ragged sizes, both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fewbit.arrays import Floats
from fewbit.errors import ArgumentError
from fewbit.formats import Format, get
from fewbit.ops import cuda
from fewbit.ops import numpy as reference
from fewbit.ops.cuda import experts
from fewbit.ops.cuda.stack import Stack, send_stack
from fewbit.ops.experts import route
from fewbit.ops.specs import Routing
from fewbit.tensor import QuantTensor

from ..ops import near_ties
from .cases import make, relative_error
from .row_cases import Inputs, floats, plain_step

pytestmark = pytest.mark.cuda


def stack(fmt: str, count: int, n: int, k: int) -> QuantTensor:
    found: Format = get(fmt)
    return QuantTensor(make(found, count * n, k)[0].stored, (count, n, k), found)


def sent(w: QuantTensor | None) -> Stack | None:
    return None if w is None else send_stack(cuda.shared_session(), w)


def run(case: Inputs, x: Floats, scores: Floats, weights: dict[str, Any], **options: Any) -> tuple[Floats, Floats]:
    """What the GPU and the reference make of rows with gaps."""
    routing, biases = weights["routing"], ("up_bias", "gate_bias", "down_bias")
    expected = reference.experts(case.host, x, scores, **{**dict.fromkeys((*biases, "gate")), **weights})
    layer = experts.Layer(
        sent(weights["up"]), sent(weights["down"]), routing, sent(weights.get("gate")), weights["kind"],  # type: ignore[arg-type]
        *(case.pointer(weights.get(bias)) for bias in biases),
        case.pointer(routing.bias), case.pointer(routing.expert_scale),
    )  # fmt: skip
    rows = case.rows(x, 4), case.rows(scores, 1)
    found = case.call(experts.experts, x.shape[1], *rows, tokens=len(x), gap=3, layer=layer, **options)
    return found, expected


VECTOR = np.linspace(-1, 1, 40, dtype=np.float32)
ROUTINGS = [
    Routing(top_k=1),
    Routing(top_k=3, normalize=False, scale=2.5),
    Routing(top_k=4, score="softmax_top", expert_scale=VECTOR),
    Routing(
        top_k=5, score="sigmoid", bias=np.linspace(-1, 1, 40, dtype=np.float32), groups=4, top_groups=2, group_top=2
    ),
    Routing(top_k=2, groups=8, top_groups=3),
    Routing(top_k=32),
]


@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
def test_route(device: cuda.Session, routing: Routing) -> None:
    routing = Routing(
        **{name: getattr(routing, name) for name in routing.__slots__} | {"top_k": min(32, routing.top_k)}
    )
    case, scores = plain_step(device, 9), 2 * floats(9, 40)
    scores[0, 3:7] = scores[0, 3]  # of equal ones the first
    up = stack("q8_0", 40, 16, 32)
    sent_up = send_stack(cuda.shared_session(), up)
    pointers = {"routing_bias": case.pointer(routing.bias), "expert_scale": case.pointer(routing.expert_scale)}
    layer = experts.Layer(sent_up, sent_up, routing, **pointers)
    rows = case.rows(scores, 5)
    pointer, weight = experts._route(case.launcher(), rows, rows, 9, layer, 0)
    chosen, weights = np.empty((9, routing.top_k), np.int32), np.empty((9, routing.top_k), np.float32)
    device.download(pointer, chosen), device.download(weight, weights)
    expected, counts = route(scores, routing)
    assert np.array_equal(chosen, expected)
    assert np.allclose(weights, counts, rtol=1e-5, atol=1e-7)


CASES = [
    ("q4_k", "q4_k", "q6_k", "silu", False),
    ("q4_0", "q8_0", "int8", "swiglu_oai", True),
    (None, "q4_k", "q4_k", "relu2", True),
]


@pytest.mark.parametrize(("gate", "up", "down", "kind", "biased"), CASES)
@pytest.mark.parametrize(("tokens", "activations"), [(1, "int8"), (3, "int16")])
def test_few_tokens(
    device: cuda.Session, gate: str | None, up: str, down: str, kind: str, biased: bool, tokens: int, activations: str
) -> None:
    found, expected = both(device, gate, up, down, kind, biased, tokens, activations=activations)
    assert relative_error(found, expected) < (4e-2 if activations == "int8" else 4e-4)


@pytest.mark.parametrize(("gate", "up", "down", "kind", "biased"), CASES)
@pytest.mark.parametrize("tokens", [1, 13, 150])
def test_many_tokens(
    device: cuda.Session, gate: str | None, up: str, down: str, kind: str, biased: bool, tokens: int
) -> None:
    found, expected = both(device, gate, up, down, kind, biased, tokens, batch_invariant=True)
    assert relative_error(found, expected) < 4e-3


@pytest.mark.parametrize(
    ("gate", "up", "down"), [("f16", "f16", "f16"), ("iq2_xs", "q4_k", "f16"), (None, "f16", "q8_0")]
)
def test_weights_that_stay_as_in_files(device: cuda.Session, gate: str | None, up: str, down: str) -> None:
    found, expected = both(device, gate, up, down, "silu", True, 11)
    assert relative_error(found, expected) < 4e-3


def both(
    device: cuda.Session, gate: str | None, up: str, down: str, kind: str, biased: bool, tokens: int, **options: Any
) -> tuple[Floats, Any]:
    count, k = 12, 256
    n = 256 if get(down).block == 256 else 72 if get(down).placement == "row" else 96
    weights: dict[str, Any] = {"up": stack(up, count, n, k), "down": stack(down, count, k, n), "kind": kind}
    weights["gate"] = stack(gate, count, n, k) if gate else None
    weights["routing"] = Routing(top_k=2, scale=1.5)
    if biased:
        weights |= {"up_bias": floats(count, n), "down_bias": floats(count, k)}
        weights |= {"gate_bias": floats(count, n)} if gate else {}
    case, x, scores = plain_step(device, tokens), 0.3 * floats(tokens, k), 2 * floats(tokens, count)
    scores[: tokens // 2, 5] += np.float32(9)  # one expert has many tokens
    return run(case, x, scores, weights, **options)


def test_a_token_does_not_depend_on_the_others(device: cuda.Session) -> None:
    weights = {"up": stack("q4_k", 8, 48, 256), "gate": stack("q4_k", 8, 48, 256), "down": stack("q8_0", 8, 256, 48)}
    weights |= {"kind": "silu", "routing": Routing(top_k=2)}  # type: ignore[dict-item]
    case, x, scores = plain_step(device, 90), floats(90, 256), floats(90, 8)
    together, _ = run(case, x, scores, weights, batch_invariant=True)
    alone, _ = run(case, x[70:73], scores[70:73], weights, batch_invariant=True)
    assert np.array_equal(together[70:73], alone)


def test_scores_that_are_not_numbers_give_no_fault(device: cuda.Session) -> None:
    weights: dict[str, Any] = {"up": stack("q8_0", 40, 32, 64), "down": stack("q8_0", 40, 64, 32), "kind": "silu"}
    case, layers = plain_step(device, 2), sent(weights["up"])
    layer = experts.Layer(layers, sent(weights["down"]), Routing(top_k=3))  # type: ignore[arg-type]
    x, scores = case.rows(floats(2, 64)), case.rows(np.full((2, 40), np.nan, np.float32))
    pointer, _ = experts._route(case.launcher(), x, scores, 2, layer, 0)
    chosen = device.download(pointer, np.empty((2, 3), np.int32))
    assert chosen.tolist() == [[0, 1, 2]] * 2


def test_too_many_experts_are_one_sentence(device: cuda.Session) -> None:
    up = send_stack(cuda.shared_session(), stack("q8_0", 40, 16, 32))
    with pytest.raises(ArgumentError, match="too many for a GPU"):
        experts.Layer(up, up, Routing(top_k=33))
    with pytest.raises(ArgumentError, match="there is no 'sinh'"):
        experts.Layer(up, up, Routing(top_k=3), kind="sinh")


@pytest.mark.parametrize("activations", [None, "int16"])
@pytest.mark.parametrize("format", near_ties.FORMATS)
def test_near_ties_are_decided_in_f32(format: str, activations: str | None) -> None:
    near_ties.check_device(format, "cuda", activations=activations)
