"""What an output must look like, as each API asks for it: JSON, a schema, a regex, one of some texts, a grammar."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from ..errors import ExtraError, RequestError
from ..text.grammar import Grammar, GrammarCompiler
from ..text.grammar.compiler import ConstraintFactory
from .bodies import Body
from .errors import ApiError, unsupported

Kind = Literal["json", "schema", "regex", "choice", "grammar"]
Schema = dict[str, Any] | bool | str  # some clients send it as JSON text
Choices = Annotated[list[str], Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What an output must look like.

    Args:
        kind: What `value` is; "json" has none.
        value: A schema, a regex, texts of which one is to be written, or a grammar in Lark or GBNF.
        field: That asked for it.
        strict: What a schema has and a grammar cannot hold is refused, and not checked at the end.
    """

    kind: Kind
    value: Any = None
    field: str = "response_format"
    strict: bool = False

    def compiled(self, compiler: GrammarCompiler) -> tuple[Grammar, ConstraintFactory]:
        """The grammar that holds it, and its constraint. What is wrong with it is refused by its field.

        It takes long for a large one.
        """
        try:
            grammar = self._grammar()
            return grammar, compiler.compile(grammar)
        except (RequestError, ExtraError) as error:
            raise ApiError(400, f"{self.field}: {error}", self.field, "invalid_grammar") from None

    def _grammar(self) -> Grammar:
        if self.kind == "json":
            return Grammar.json()
        if self.kind == "schema":
            return Grammar.schema(self.value, strict=self.strict)
        makers = {"regex": Grammar.regex, "choice": Grammar.choice, "grammar": Grammar.parse}
        return makers[self.kind](self.value)


class JsonSchema(Body):
    """A schema with a name, as OpenAI's API has it."""

    name: str | None = None
    description: str | None = None
    schema: Schema | None = None
    strict: bool | None = None


class ResponseFormat(Body):
    """`response_format` of OpenAI's API. With json_object llama.cpp's clients may give a `schema`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: Schema | None = None

    def output(self) -> OutputFormat | None:
        given = self.json_schema or JsonSchema(schema=self.schema)
        return named_format(self.type, given.schema, given.strict, "response_format", "json_schema.schema")


class StructuredOutputs(Body):
    """vLLM's `structured_outputs`. The last fields ask for what is so anyway."""

    json: Schema | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    whitespace_pattern: Any = None
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None

    def outputs(self) -> Iterable[OutputFormat]:
        if self.structural_tag is not None:
            raise unsupported("structured_outputs.structural_tag", "use tools, or a grammar")
        if self.json_object:
            yield OutputFormat("json", field="structured_outputs.json_object")
        kinds: dict[str, Kind] = {"json": "schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
        yield from _given(self, kinds, "structured_outputs.")


class Guided(Body):
    """Fields by which clients of vLLM and llama.cpp ask for a format."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None  # there is one
    json_schema: Schema | None = None
    grammar: str | None = None

    def output(self) -> OutputFormat | None:
        """What the output must look like, if anything was said about it."""
        kinds: dict[str, Kind] = {
            "guided_json": "schema", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar",
            "json_schema": "schema", "grammar": "grammar",
        }  # fmt: skip
        found = [*_given(self, kinds)]
        if self.structured_outputs is not None:
            found += self.structured_outputs.outputs()
        if self.response_format is not None and (output_format := self.response_format.output()) is not None:
            found.append(output_format)
        if len(found) > 1:
            raise ApiError(400, f"{found[0].field} and {found[1].field} do not go together; give one of them",
                           found[1].field, "invalid_request")  # fmt: skip
        return found[0] if found else None


def named_format(
    kind: Literal["text", "json_object", "json_schema"], schema: Schema | None, strict: bool | None, field: str,
    where: str,
) -> OutputFormat | None:  # fmt: skip
    """A format of OpenAI's API; `where` its schema stands in the field.

    >>> named_format("json_object", None, None, "text.format", "schema")
    OutputFormat(kind='json', value=None, field='text.format', strict=False)
    """
    if kind == "text":
        return None
    if schema is None:
        if kind == "json_schema":
            raise ApiError(400, f"{field} json_schema needs {where}", f"{field}.{where}", "invalid_request")
        return OutputFormat("json", field=field)
    return OutputFormat("schema", schema, field, bool(strict))


def _given(body: Body, kinds: dict[str, Kind], prefix: str = "") -> Iterable[OutputFormat]:
    """The formats that fields of a body ask for. Clients send empty ones for none."""
    for name, kind in kinds.items():
        value = getattr(body, name)
        if value is not None and value not in ("", {}):
            yield OutputFormat(kind, value, prefix + name)
