from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.cluster.prefixes import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_LOAD_FACTOR,
    PrefixIndex,
    choose,
    prompt_bytes,
    prompt_key,
)
from fewbit.server.jobs import Job


def chat(*texts: str, namespace: str = "") -> Job:
    return Job(messages=[{"role": "user", "content": text} for text in texts], namespace=namespace)


def common(one: Job, other: Job) -> int:
    """The chunks that two prompts have in common, counted with their bytes."""
    a, b = prompt_bytes(one), prompt_bytes(other)
    same = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return min(same // CHUNK_BYTES, MAX_CHUNKS)


@given(st.lists(st.text(max_size=700), max_size=4), st.lists(st.text(max_size=700), max_size=4), st.integers(0, 4))
def test_keys_have_in_common_what_prompts_begin_with(first: list[str], second: list[str], shared: int) -> None:
    one, other = chat(*first), chat(*first[:shared], *second)
    index = PrefixIndex()
    index.add("a", prompt_key(one))
    assert index.depth("a", prompt_key(other)) == common(one, other)
    assert index.depth("b", prompt_key(other)) == 0


def test_namespaces_have_nothing_in_common() -> None:
    index = PrefixIndex()
    index.add("a", prompt_key(chat("x" * 5000, namespace="one")))
    assert index.depth("a", prompt_key(chat("x" * 5000, namespace="two"))) == 0


@pytest.mark.parametrize(
    "job",
    [Job(), Job(prompts=[""]), Job(prompts=[[1, 2] * 500]), chat("\ud800" * 500), chat("x" * (CHUNK_BYTES * 2000))],
)
def test_any_job_has_a_key(job: Job) -> None:
    assert len(prompt_key(job)) == min(MAX_CHUNKS, len(prompt_bytes(job)) // CHUNK_BYTES)


def test_the_chunks_of_many_prompts_are_remembered_longest() -> None:
    index = PrefixIndex(most=8)
    for number in range(20):
        index.add("a", [b"first", b"%d" % number])
    assert index.depth("a", [b"first", b"19"]) == 2
    assert index.depth("a", [b"first", b"0"]) == 1
    index.drop("a")
    assert index.depth("a", [b"first"]) == 0


def test_a_replica_that_knows_the_prompt_is_chosen() -> None:
    index, key = PrefixIndex(), prompt_key(chat("x" * 4000))
    index.add("b", key)
    assert choose(key, {"a": 0, "b": 1, "c": 0}, index) == "b"
    assert choose(key, {"a": 0, "b": 8, "c": 0}, index) != "b"  # it has much more to do


def test_all_frontends_choose_alike() -> None:
    keys = [prompt_key(chat(f"{number}" + "x" * 500)) for number in range(50)]
    found = [choose(key, {"a": 2, "b": 2}, PrefixIndex()) for key in keys]
    assert found == [choose(key, {"b": 2, "a": 2}, PrefixIndex()) for key in keys]
    assert {*found} == {"a", "b"}


@given(st.integers(1, 9), st.integers(1, 400), st.integers(1, 8), st.integers())
def test_no_replica_has_much_more_than_the_mean(num_replicas: int, jobs: int, groups: int, seed: int) -> None:
    index, random = PrefixIndex(), Random(seed)
    loads = {f"r{number}": 0 for number in range(num_replicas)}
    for _ in range(jobs):
        key = [b"%d" % random.randrange(groups)] * 20
        name = choose(key, loads, index)
        index.add(name, key)
        loads[name] += 1
    assert max(loads.values()) <= max(2, MAX_LOAD_FACTOR * jobs / num_replicas + 1)
