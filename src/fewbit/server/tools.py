"""Functions that a model may call, as each API describes them, in the form that chat templates expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .errors import ApiError

Choice = Literal["auto", "required", "none"]


@dataclass(frozen=True, slots=True)
class Tools:
    """Functions that a model may call.

    Args:
        functions: As chat templates expect them; see `function_tool`.
        choice: Whether one must be called; "none": the model is not told of them.
        name: The only one that may be called.
        parallel: There may be several calls in an answer.
        strict: Names of functions whose arguments are held to their schemas, all of it or it is refused.
    """

    functions: Sequence[dict[str, Any]] = ()
    choice: Choice = "auto"
    name: str | None = None
    parallel: bool = True
    strict: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.choice == "required" and not self.functions:
            raise ApiError(400, "tool_choice asks for a call, and there are no tools", "tool_choice", "invalid_request")
        if self.name is not None and self.name not in self.names:
            there = ", ".join(self.names)[:300]
            raise ApiError(400, f"tool_choice names {self.name[:100]!r}, which is not among the tools: {there}",
                           "tool_choice", "invalid_request")  # fmt: skip

    @property
    def names(self) -> list[str]:
        return [one["function"]["name"] for one in self.functions]

    @property
    def shown(self) -> Sequence[dict[str, Any]] | None:
        """Those that the model is told of."""
        return self.functions if self.functions and self.choice != "none" else None

    def only(self, names: Sequence[str]) -> Tools:
        """The same with those functions only that have one of these names."""
        return replace(self, functions=[one for one in self.functions if one["function"]["name"] in names])
