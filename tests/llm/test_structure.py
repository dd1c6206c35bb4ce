"""Structured output: schemas, types, regexes, choices and grammars; what comes back, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest

import fewbit as fb
from fewbit.errors import DtypeError, RequestError
from fewbit.files.hub import find
from fewbit.llm import LLM, Completion
from fewbit.text.grammar import Grammar

from ..llm_toy import WARM, many, one
from ..llm_toy import make as make_toy

pytest.importorskip("llguidance")

PRIMES = {"type": "array", "items": {"enum": [2, 3, 5, 7]}, "minItems": 3, "maxItems": 3}
DISTINCT = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2, "uniqueItems": True}


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Car:
    color: Color
    doors: Literal[3, 5]
    electric: bool


@pytest.fixture(scope="module")
def llm() -> LLM:
    """It writes random bytes, as far as it may."""
    return make_toy()


async def every_way(llm: LLM, **options: Any) -> list[Completion]:
    """The same output by all methods, of which some read it in an event loop."""
    stream = llm.stream("Once", **options)
    assert "".join(stream) == stream.completion.text
    async with llm.astream("Once", **options) as astream:
        assert "".join([text async for text in astream]) == astream.completion.text
    async with aclosing(await llm.aparts("Once", **options)) as deltas:
        parts = [delta async for delta in deltas]
    assert parts[-1].completion is not None
    every = [one(llm.generate("Once", **options)), one(await llm.agenerate("Once", **options))]
    return [*every, stream.completion, astream.completion, parts[-1].completion]


@pytest.mark.parametrize(
    ("options", "kind", "pattern"),
    [
        ({"schema": PRIMES}, list, r"\[[2357], [2357], [2357]\]"),
        ({"schema": json.dumps(PRIMES)}, list, r"\[[2357], [2357], [2357]\]"),
        ({"schema": Car}, Car, r'\{"color": "(red|blue)", "doors": [35], "electric": (true|false)\}'),
        ({"schema": Literal["a", "b"]}, str, r'"[ab]"'),
        ({"schema": bool}, bool, "true|false"),
        ({"regex": "[0-9]{4}-[0-9]{2}"}, type(None), r"\d{4}-\d\d"),
        ({"choice": ["one", "two", "three"]}, type(None), "one|two|three"),
        ({"grammar": 'root ::= ("ha" | "ho") "!"'}, type(None), "(ha|ho)!"),
        ({"grammar": 'start: ("ha" | "ho") "!"'}, type(None), "(ha|ho)!"),
        ({"grammar": Grammar.schema(PRIMES)}, list, r"\[[2357], [2357], [2357]\]"),
    ],
    ids=str,
)
def test_outputs_have_their_structure(llm: LLM, options: dict[str, Any], kind: type, pattern: str) -> None:
    for seed in range(3):
        found = asyncio.run(every_way(llm, seed=seed, **options, **WARM))
        assert len({(output.text, output.finish_reason, repr(output.parsed)) for output in found}) == 1
        assert re.fullmatch(pattern, found[0].text), found[0].text
        assert (found[0].finish_reason, found[0].error, type(found[0].parsed)) == ("stop", None, kind)
        assert found[0].to_dict()["parsed"] == (None if kind is type(None) else json.loads(found[0].text))


def test_an_object_is_one_of_json(llm: LLM) -> None:
    output = one(
        llm.generate("Once", json=True, max_tokens=40, seed=1, logit_bias={**dict.fromkeys(range(128, 256), -99.0)})
    )
    assert output.text.startswith("{")
    assert output.parsed == (json.loads(output.text) if output.finish_reason == "stop" else None)


def test_a_text_that_breaks_its_schema_is_no_success(llm: LLM) -> None:
    for output in asyncio.run(every_way(llm, schema=DISTINCT)):
        assert (output.text, output.finish_reason, output.parsed) == ("[1, 1]", "invalid", None)
        assert output.error == "$: [1, 1] has non-unique elements"
    cut = one(llm.generate("Once", schema=PRIMES, stop=", "))
    assert (cut.finish_reason, cut.parsed) == ("invalid", None)
    assert cut.error is not None
    assert cut.error.startswith("not JSON")


def test_a_text_that_is_cut_off_has_no_value(llm: LLM) -> None:
    output = one(llm.generate("Once", schema=PRIMES, max_tokens=4))
    assert (len(output.tokens), output.finish_reason, output.parsed, output.error) == (4, "length", None, None)
    nothing = one(llm.generate("Once", schema=PRIMES, max_tokens=0))
    assert (nothing.text, nothing.finish_reason, nothing.parsed) == ("", "length", None)
    stream = llm.stream("Once", schema=PRIMES)
    next(stream)
    stream.close()
    assert (stream.completion.finish_reason, stream.completion.parsed) == ("cancelled", None)


def test_several_prompts_and_outputs(llm: LLM) -> None:
    found = many(llm.generate(["Once", "Twice"], n=3, schema=Car, seed=1, **WARM))
    cars = [output.parsed for first in found for output in first.outputs]
    assert all(isinstance(car, Car) for car in cars)
    assert len({repr(car) for car in cars}) > 1


def test_forced_tokens_are_counted_and_have_no_log_probabilities_of_their_own(llm: LLM) -> None:
    before = llm.engine.stats()
    output = one(llm.generate("Once", schema=Car, seed=3, **WARM))
    after = llm.engine.stats()
    assert after.tokens - before.tokens == len(output.tokens)
    assert after.forced_tokens - before.forced_tokens > 20  # a token for each byte
    assert after.steps - before.steps < 12
    sampled = one(llm.generate("Once", schema=Car, seed=3, logprobs=1, **WARM))
    assert len(sampled.logprobs or ()) == len(sampled.tokens)
    assert isinstance(sampled.parsed, Car)
    assert llm.engine.stats().forced_tokens == after.forced_tokens


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"regex": "a", "choice": ["a"]}, RequestError, "regex and choice cannot be used together: give one of schema"),
        ({"json": True, "constraint": object}, RequestError, "json and constraint cannot be used together"),
        ({"json": "yes"}, DtypeError, "json must be True or False"),
        ({"schema": '{"type":'}, RequestError, "JSON"),
        ({"schema": object()}, RequestError, "schema"),
        ({"regex": "("}, RequestError, "the regex cannot be compiled"),
        ({"choice": []}, RequestError, "a choice needs a list of at least one text"),
        ({"choice": "yes"}, RequestError, "a choice needs a list of at least one text"),
        ({"grammar": "root ::= ("}, RequestError, "grammar"),
        ({"grammar": 5}, RequestError, "a grammar must be a text"),
    ],
)
def test_what_is_refused(llm: LLM, options: dict[str, Any], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        llm.generate("Once", **options)
    with pytest.raises(kind, match=match):
        asyncio.run(llm.agenerate("Once", **options))


def test_options_that_are_not_set_are_none(llm: LLM) -> None:
    nothing: dict[str, Any] = {"schema": None, "regex": None, "choice": None, "grammar": None, "json": False}
    plain, other = (one(llm.generate("Once", max_tokens=8, seed=2, **options)) for options in ({}, nothing))
    assert (plain.text, plain.parsed, plain.finish_reason) == (other.text, None, "length")


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LLM]:
    try:
        path = find("smollm2", offline=True)
    except fb.FewbitError as error:
        pytest.skip(f"the default model is not here: {error}")
    with LLM(path, ctx=512) as found:
        yield found


@dataclass
class City:
    name: str
    country: str


def ask(llm: LLM, text: str, **options: Any) -> Completion:
    return llm.chat([{"role": "user", "content": text}], temperature=0, max_tokens=64, **options)


def test_the_default_model_fills_in_a_dataclass(smollm2: LLM) -> None:
    output = ask(smollm2, "Describe Paris.", schema=City)
    assert (output.parsed, output.finish_reason) == (City("Paris", "France"), "stop")
    assert output.text == '{"name": "Paris", "country": "France"}'
    plain = ask(smollm2, "Describe Paris.", schema=City, logprobs=0)  # without forced tokens
    assert plain.parsed == output.parsed


def test_the_default_model_fills_in_a_pydantic_model(smollm2: LLM) -> None:
    pydantic = pytest.importorskip("pydantic")
    person = pydantic.create_model("Person", name=str, age=(int, pydantic.Field(ge=0)))
    output = ask(smollm2, "Anna is 34 years old. Write this as JSON.", schema=person)
    assert output.parsed == person(name="Anna", age=34)
    odd = pydantic.create_model("Odd", __validators__={"check": pydantic.field_validator("a")(_refuse)}, a=int)
    refused = ask(smollm2, "A number, please.", schema=odd)
    assert (refused.finish_reason, refused.parsed) == ("invalid", None)
    assert "no number will do" in (refused.error or "")


def _refuse(value: int) -> int:
    raise ValueError("no number will do")


def test_the_default_model_writes_what_it_may(smollm2: LLM) -> None:
    assert ask(smollm2, "Is the sky blue?", choice=["yes", "no"]).text in ("yes", "no")
    assert re.fullmatch("[0-9]{5}", ask(smollm2, "A zip code of Berlin?", regex="[0-9]{5}").text)
    assert ask(smollm2, "Hi", grammar='root ::= "Hello" ("!" | ".")').text in ("Hello!", "Hello.")
    assert isinstance(ask(smollm2, "Describe Paris as JSON.", json=True).parsed, dict | None)


def test_structured_outputs_beside_free_ones(smollm2: LLM) -> None:
    """The free ones are those of a batch of their own, with one numeric path for all batches."""
    texts = ["Once upon a time", "The sky is"]
    with LLM(smollm2.path, ctx=512, batch_invariant=True) as llm:
        free = llm.generate(texts, max_tokens=16, seed=3)

        async def main() -> list[Any]:
            structured = llm.achat([{"role": "user", "content": "Describe Rome."}], schema=City, temperature=0)
            return await asyncio.gather(
                structured, llm.agenerate(["Once upon a time", "The sky is"], max_tokens=16, seed=3)
            )

        city, beside = asyncio.run(main())
    assert isinstance(city.parsed, City)
    assert [output.tokens for output in beside] == [output.tokens for output in free]
