"""Descriptions of files that nobody trusts: a plan or a sentence, and no memory for what is only described."""

from __future__ import annotations

import resource
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.browser import AdapterLimits, DescribedFile, Description, make_plan
from fewbit.errors import FewbitError
from fewbit.models import open_model

from .described import described
from .test_files import ZOO, vectors_of

FILE = open_model(ZOO / "llama/model.gguf")
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers())
)


def description(name: str = "llama", **changed: Any) -> Description:
    file = open_model(ZOO / name / "model.gguf")
    found = described(file)
    return Description(
        **{"metadata": found["metadata"], "tensors": found["tensors"], "vectors": vectors_of(file), **changed}
    )


def plan_of(found: Description, *given: Any) -> dict[str, Any]:
    return make_plan(DescribedFile(found), *given)


def is_refused_in_a_sentence(found: Description) -> None:
    """Or it is planned."""
    try:
        plan_of(found)
    except FewbitError as error:
        sentence = str(error)
    else:
        return
    assert "\n" not in sentence


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "lfm2", "qwen35", "granitehybrid"])
def test_any_hyperparameter(name: str) -> None:
    known = described(open_model(ZOO / name / "model.gguf"))["metadata"]

    @settings(max_examples=60, deadline=None)
    @given(key=st.sampled_from(sorted(known)), value=VALUES)
    def check(key: str, value: Any) -> None:
        is_refused_in_a_sentence(description(name, metadata={**known, key: value}))

    check()


@settings(max_examples=150, deadline=None)
@given(number=st.integers(0, 20), kind=st.integers(-1, 45), shape=st.lists(st.integers(-1, 2**33), max_size=4))
def test_any_tensor(number: int, kind: int, shape: list[int]) -> None:
    tensors = described(FILE)["tensors"]
    number %= len(tensors)
    changed = [*tensors[:number], (tensors[number][0], kind, shape), *tensors[number + 1 :]]
    is_refused_in_a_sentence(description(tensors=changed))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"vectors": {}}, "128 bytes are needed, none were given"),
        ({"vectors": {"output_norm.weight": b"abc"}}, "bytes are needed"),
        ({"metadata": {}}, "general.architecture must be a name"),
        ({"metadata": {"general.architecture": "nothing"}}, "architecture 'nothing' is not known"),
        (
            {"metadata": {**described(FILE)["metadata"], "llama.attention.layer_norm_rms_epsilon": 3.5e38}},
            "number of at least 0",
        ),
        ({"tensors": [("a", 0, [4, 4])] * 2}, "occurs twice"),
        ({"tensors": [("a", 0, [4, 4, 4, 4])]}, "has 4 dimensions; the browser runs models with at most 3"),
        ({"vectors": {**vectors_of(FILE), "token_embd.weight": b"abc"}}, "bytes are needed, 3 were given"),
        ({"tensors": [("a", 2, [4, 33])]}, "a multiple of 32"),
        ({"tensors": [("a", 0, [1 << 31, 1])]}, "dimensions from 1 to 2097152"),
        ({"tensors": [("a", 0, [1 << 21, 1 << 21])]}, "more than the 64 GiB"),
        ({"tensors": [(str(n), 0, [1]) for n in range(5000)]}, "at most 4096 are planned"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_sentences(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FewbitError, match=sentence):
        plan_of(description(**changed))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bert", "this one is an encoder"),
        ("gemma4-moe", "depends on the values of a matrix of 256x32"),
    ],
)
def test_models_that_browsers_do_not_run(name: str, sentence: str) -> None:
    with pytest.raises(FewbitError, match=sentence):
        plan_of(description(name))


def large() -> Description:
    """30 GB of matrices."""
    wide, layers = 8192, 40
    metadata = {
        "general.architecture": "llama", "llama.block_count": layers, "llama.embedding_length": wide,
        "llama.feed_forward_length": 3 * wide, "llama.attention.head_count": 64, "llama.attention.head_count_kv": 8,
        "llama.context_length": 4096, "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.model": "llama",
    }  # fmt: skip
    tensors: list[tuple[str, int, list[int]]] = [
        ("token_embd.weight", 8, [128000, wide]),
        ("output_norm.weight", 0, [wide]),
    ]
    for i in range(layers):
        shapes = {
            "attn_q": [wide, wide], "attn_k": [wide // 8, wide], "attn_v": [wide // 8, wide],
            "attn_output": [wide, wide],
            "ffn_gate": [3 * wide, wide], "ffn_up": [3 * wide, wide], "ffn_down": [wide, 3 * wide],
        }  # fmt: skip
        tensors += [(f"blk.{i}.{name}.weight", 8, shape) for name, shape in shapes.items()]
        tensors += [(f"blk.{i}.{name}.weight", 0, [wide]) for name in ("attn_norm", "ffn_norm")]
    vectors = {name: bytes(4 * wide) for name, _, shape in tensors if len(shape) == 1}
    return Description(metadata, tensors, vectors)


def test_what_does_not_fit_the_adapter() -> None:
    with pytest.raises(FewbitError, match="the buffer 'rows' has 4 MB: take a smaller model or ctx"):
        plan_of(large(), AdapterLimits(1 << 22, 1 << 30))
    with pytest.raises(FewbitError, match="buffers of at most 1 MB; 4 MB are needed"):
        plan_of(large(), AdapterLimits(1 << 20, 1 << 20), 32)
    with pytest.raises(FewbitError, match="binding_bytes must be at least 1048576"):
        plan_of(description(), AdapterLimits(5))


def test_pages_that_do_not_fit_a_binding_are_in_several_buffers() -> None:
    longer = description(metadata={**described(FILE)["metadata"], "llama.context_length": 1 << 15})
    plans = [plan_of(longer, AdapterLimits(binding, 1 << 24), 1 << 15) for binding in (1 << 24, 1 << 20)]
    counts = [sum(1 for one in plan["buffers"] if one["name"] == "pages") for plan in plans]
    assert counts[1] > counts[0]
    sizes = [sum(one["bytes"] for one in plan["buffers"] if one["name"] == "pages") for plan in plans]
    assert sizes[1] - sizes[0] == 4 * (counts[1] - counts[0])  # a word behind each
    attends = [sum(plan["kernels"][one["kernel"]]["name"].startswith("attend") for one in
                   plan["programs"]["token"]["dispatches"]) for plan in plans]  # fmt: skip
    assert attends[1] / attends[0] == counts[1] / counts[0]


def test_a_large_model_takes_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = plan_of(large(), AdapterLimits(1 << 30, 1 << 32))
    bytes_of_parts = sum(part.get("bytes", 0) for one in found["buffers"] for part in one["parts"])
    assert bytes_of_parts > 30e9
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 400e6
    assert max(one["bytes"] for one in found["buffers"]) <= 1 << 30


def test_wide_heads_make_no_wide_tables() -> None:
    wide = 1 << 14
    metadata = {
        **large().metadata,
        "llama.block_count": 1,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 32,
    }
    metadata |= {"llama.attention.head_count": 1, "llama.attention.head_count_kv": 1}
    metadata |= {"llama.attention.key_length": wide, "llama.attention.value_length": wide}
    shapes = {"attn_q": [wide, 32], "attn_k": [wide, 32], "attn_v": [wide, 32], "attn_output": [32, wide]}
    shapes |= {name: [32, 32] for name in ("ffn_gate", "ffn_up", "ffn_down")}
    tensors: list[Any] = [("token_embd.weight", 0, [64, 32]), ("output_norm.weight", 0, [32])]
    tensors += [(f"blk.0.{name}.weight", 0, shape) for name, shape in shapes.items()]
    tensors += [(f"blk.0.{name}.weight", 0, [32]) for name in ("attn_norm", "ffn_norm")]
    vectors = {name: bytes(128) for name, _, shape in tensors if len(shape) == 1}
    with pytest.raises(FewbitError, match="heads of at most 1024 values"):
        plan_of(Description(metadata, tensors, vectors))


def test_no_context_is_longer_than_tables_are_made_for() -> None:
    metadata = {**described(FILE)["metadata"], "llama.context_length": 1 << 24}
    assert plan_of(description(metadata=metadata), AdapterLimits(), 1 << 24)["model"]["ctx"] == 1 << 17
