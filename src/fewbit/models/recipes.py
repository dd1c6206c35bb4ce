"""Which stored tensors become which of GGUF's: a table of names with numbers, and experts that become one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import FileError
from .transforms import Transform

Target = str | tuple[str, Transform]
Tensors = dict[str | tuple[str, ...], Target | list[Target]]

_SUFFIXES = (".weight", ".bias")


@dataclass(frozen=True)
class Recipe:
    """How to make a tensor from the stored tensors `sources`; a stack has sources for each expert."""

    sources: tuple[tuple[str, ...], ...]
    transform: Transform | None = None
    stacked: bool = False


def place_all(names: Mapping[str, str], table: TensorTable) -> dict[str, Recipe]:
    """The recipe for each GGUF tensor, of stored names and what the table calls them."""
    found: dict[str, _Draft] = {}
    for name, plain in names.items():
        _place(name, plain, table, found)
    return {target: draft.recipe(target) for target, draft in found.items()}


@dataclass
class _Draft:
    transform: Transform | None
    count: int  # of sources that become one
    experts: dict[int, dict[int, str]] = field(default_factory=dict)  # by number, sources by position
    stacked: bool = False

    def recipe(self, target: str) -> Recipe:
        if sorted(self.experts) != list(range(len(self.experts))):
            raise FileError(f"of {target} the checkpoint has the experts {sorted(self.experts)[:8]}; some are missing")
        each = [self.experts[number] for number in range(len(self.experts))]
        if any(len(sources) != self.count for sources in each):
            raise FileError(f"{target} is made of {self.count} tensors, the checkpoint has not all of them: {each[0]}")
        sources = tuple(tuple(names[place] for place in sorted(names)) for names in each)
        return Recipe(sources, self.transform, self.stacked)


TensorTable = dict[
    str, list[tuple[str, Transform | None, int, int]]
]  # pattern: target, transform, position, of how many


def tensor_table(tensors: Mapping[str | tuple[str, ...], Target | list[Target]]) -> TensorTable:
    table: TensorTable = {}
    for patterns, targets in tensors.items():
        several = (patterns,) if isinstance(patterns, str) else patterns
        for target in targets if isinstance(targets, list) else [targets]:
            name, transform = (target, None) if isinstance(target, str) else target
            for place, pattern in enumerate(several):
                table.setdefault(pattern, []).append((name, transform, place, len(several)))
    return table


def _place(name: str, plain: str, table: TensorTable, found: dict[str, _Draft]) -> None:
    pattern, numbers = numbered(plain)
    entries, suffix = targets_of(plain, table)  # the table may name tensors by their numbers
    if entries is None:
        entries, suffix = targets_of(pattern, table)
    for target, transform, place, count in entries or [(plain, None, 0, 1)]:
        full = target.replace("{i}", str(numbers[0]) if numbers else "") + suffix
        stacked = "{e}" in pattern and entries is not None
        draft = found.setdefault(full, _Draft(transform, count, stacked=stacked))
        sources = draft.experts.setdefault(numbers[1] if stacked else 0, {})
        if place in sources:
            raise FileError(f"{sources[place]} and {name} would both become {full}")
        sources[place] = name


def targets_of(pattern: str, table: TensorTable) -> tuple[list[tuple[str, Transform | None, int, int]] | None, str]:
    """The targets of a name, and its suffix. Some checkpoints omit "model.", or add it."""
    end = next((end for end in _SUFFIXES if pattern.endswith(end)), "")
    for name in (pattern, f"model.{pattern}", pattern.removeprefix("model."), pattern.removeprefix("bert."),
                 pattern.removeprefix("roberta.")):  # fmt: skip
        if name in table:
            return table[name], ""
        if end and name.removesuffix(end) in table:
            return table[name.removesuffix(end)], end
    return None, ""


def numbered(name: str) -> tuple[str, list[int]]:
    """A name with its numbers replaced, and the numbers.

    >>> numbered("model.layers.3.mlp.experts.7.up_proj.weight")
    ('model.layers.{i}.mlp.experts.{e}.up_proj.weight', [3, 7])
    """
    numbers: list[int] = []
    parts = name.split(".")
    for at, part in enumerate(parts):
        if part.isascii() and part.isdecimal() and len(part) < 6 and len(numbers) < 2:
            parts[at] = "{e}" if numbers else "{i}"
            numbers.append(int(part))
    return ".".join(parts), numbers
