"""Records of options: what is known of each field, and functions that take the fields of a record as their parameters.

A record is a dataclass whose docstring has a line for each field under `Args:`. The parameters of a function, its help
and the options of a command follow from it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, get_args, get_type_hints

from .errors import DtypeError, RequestError
from .validation import to_flag, to_size

OptionProgress = Callable[[str, int, int | None], None]  # what is done, bytes done, bytes in all
Scope = Literal["python", "serve", "commands"]
P = ParamSpec("P")
Self = TypeVar("Self")
Record = TypeVar("Record")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Choice:
    """What there is to say of an option beside its type, its default value and its documentation.

    Args:
        default: The default in words, where the value is None.
        least: The smallest number.
        flag: A short form of the command's option.
        values: All values, if they are few.
        scope: Where it is an option: of the function alone, also of `fewbit serve`, or of all commands for the record.
        command: Name of the command's option, where it is another one.
        metavar: What the help of a command shows in place of a value.
    """

    default: str = ""
    least: int = 1
    flag: str = ""
    values: tuple[str, ...] = ()
    scope: Scope = "commands"
    command: str = ""
    metavar: str = ""


@dataclass(frozen=True, slots=True)
class OptionField:
    """A field of a record of options, with all that is known of it."""

    name: str
    kind: type  # of a value other than None
    default: Any
    doc: str
    choice: Choice

    def check(self, value: Any) -> Any:
        """The value to use. Whether text is right is seen where it is used."""
        if value is None and self.default is None:
            return None
        if self.kind is bool:
            return to_flag(value, self.name)
        if isinstance(value, bool) and self.kind is int:
            raise DtypeError(f"{self.name} must be a number, got {value}")
        if self.kind is int:
            return to_size(value, self.name, self.choice.least, error=RequestError)
        return value


def option_fields(record: type[Any]) -> tuple[OptionField, ...]:
    """The fields of a record of options, in their order."""
    plain, full = get_type_hints(record), get_type_hints(record, include_extras=True)
    entries = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", inspect.cleandoc(record.__doc__ or ""), re.MULTILINE)
    docs = {name: " ".join(text.split()) for name, text in entries}
    return tuple(
        OptionField(
            name=one.name,
            kind=_kind(plain[one.name]),
            default=one.default,
            doc=docs.get(one.name, ""),
            choice=next((extra for extra in get_args(full[one.name])[1:] if isinstance(extra, Choice)), Choice()),
        )
        for one in fields(record)
    )


def _kind(hint: Any) -> type:
    """The type of values other than None; `Path` where a str is a path too."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    return Path if PathLike[str] in kinds else kinds[0]


def takes_options(
    make: Callable[P, Record],
) -> Callable[[Callable[[Self, Record], None]], Callable[Concatenate[Self, P], None]]:
    """Let a method of a record of options take their fields as its parameters, for people and type checkers."""

    def decorate(method: Callable[[Self, Record], None]) -> Callable[Concatenate[Self, P], None]:
        @wraps(method)
        def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> None:
            method(self, make(*args, **kwargs))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        call.__signature__ = inspect.Signature([own, *_parameters(make)])  # type: ignore[attr-defined]
        return call

    return decorate


def with_options(
    make: Callable[P, Record],
) -> Callable[[Callable[[Record], Result]], Callable[P, Result]]:
    """The same for a function of a record. Its docstring gets the record's `Args:`."""

    def decorate(function: Callable[[Record], Result]) -> Callable[P, Result]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            return function(make(*args, **kwargs))

        result = get_type_hints(function)["return"]
        call.__signature__ = inspect.Signature(_parameters(make), return_annotation=result)  # type: ignore[attr-defined]
        call.__doc__ = with_args(function.__doc__, make)
        return call

    return decorate


def _parameters(make: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(make)
    return [one.replace(annotation=hints[one.name]) for one in inspect.signature(make).parameters.values()]


def with_args(docstring: str | None, record: Any) -> str:
    """A docstring, and after it the `Args:` of a record of options."""
    args = inspect.cleandoc(record.__doc__ or "").partition("Args:\n")
    return f"{inspect.cleandoc(docstring or '')}\n\n{''.join(args[1:])}"
