"""The plan of a quantized file: the format of each tensor, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ..errors import DtypeError, FormatError
from ..files.model import ModelFile
from ..formats import Format, get
from ..models.vision import ENCODER
from .encoders import choose_for_encoder
from .mixes import FLOATS, Mix, choose, fitting, is_output, is_quantizable, model_sizes, writable_formats

# What GGUF files have for formats that only fewbit has, or that only checkpoints have.
NEAREST = {
    "int4_group": "q4_0", "int4_group_zero": "q4_1", "int4": "q4_1", "int8": "q8_0", "int8_affine": "q8_0",
    "f8_e4m3": "bf16",
}  # fmt: skip


@dataclass(frozen=True)
class TensorPlan:
    """What becomes of a tensor. `wanted` is the format before a fallback for rows that are not whole blocks, `loss` is
    predicted for a format that was chosen by loss."""

    name: str
    shape: tuple[int, ...]
    source: Format
    wanted: Format
    format: Format
    loss: float | None = None

    @property
    def source_bytes(self) -> int:
        return _nbytes(self.shape, self.source)

    @property
    def nbytes(self) -> int:
        return _nbytes(self.shape, self.format)

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1


Plan = Mapping[str, TensorPlan]


class Overrides:
    """Formats of tensors by patterns of their names: regular expressions, the first that is found in a name counts."""

    def __init__(self, formats: Mapping[str, str]) -> None:
        if not isinstance(formats, Mapping):
            raise DtypeError(f"tensors must be a dictionary of patterns and formats, not {type(formats).__name__}")
        self._formats = [(_pattern(text), _writable(name, text)) for text, name in formats.items()]
        self._unused = {pattern.pattern for pattern, _ in self._formats}

    def find(self, name: str) -> Format | None:
        for pattern, fmt in self._formats:
            if pattern.search(name):
                self._unused.discard(pattern.pattern)
                return fmt
        return None

    def check_used(self) -> None:
        """Refuse patterns that no matrix has: they are probably misspelled."""
        if self._unused:
            unused = ", ".join(repr(text) for text in sorted(self._unused))
            raise FormatError(f"no matrix has a name with {unused}; `fewbit inspect` lists the names")


def _pattern(text: Any) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise FormatError(f"{text!r} is not a regular expression: {error}") from None


def _writable(name: Any, pattern: str) -> Format:
    plain = name.lower().replace("-", "_") if isinstance(name, str) else name
    if plain not in writable_formats():
        known = ", ".join(writable_formats())
        raise FormatError(f"{pattern!r} asks for the format {name!r}; there are: {known}")
    return get(plain)


def plan_tensors(
    file: ModelFile,
    mix: Mix | None,
    overrides: Overrides | None = None,
    *,
    has_importance: bool = False,
    keeps_packed: bool = False,
) -> Plan:
    """The plan of every tensor of a model.

    Args:
        file: The model.
        mix: Which formats matrices get. None: each keeps its own, or gets the nearest that GGUF files have.
        overrides: Formats of some tensors.
        has_importance: Whether importance is known: some mixes choose other formats with it.
        keeps_packed: Whether tensors that are packed already stay as they are.
    """
    sizes = model_sizes(file.config, file.infos, has_importance)
    plans = {}
    for name, info in file.infos.items():
        source, shape = info.format, tuple(info.shape)
        given = overrides.find(name) if overrides and is_quantizable(name, shape) else None
        if file.architecture == ENCODER and not is_integer(source):
            wanted = given or choose_for_encoder(mix, name, shape, source, file.config) or nearest_in_gguf(source)
        elif given is None and (mix is None or (keeps_packed and source.name not in FLOATS) or is_integer(source)):
            wanted = nearest_in_gguf(source)
        else:
            wanted = given or choose(mix, name, shape, sizes)  # type: ignore[arg-type]
        got = wanted if wanted == source else fitting(wanted, shape[-1])
        if got != wanted and is_output(name, sizes):
            got = fitting(get("q8_0"), shape[-1])
        plans[name] = TensorPlan(name, shape, source, wanted, got)
    if overrides:
        overrides.check_used()
    return plans


def nearest_in_gguf(fmt: Format) -> Format:
    """The format itself, or the one of GGUF files that loses least of it."""
    return fmt if fmt.gguf is not None else get(NEAREST[fmt.native_name.removesuffix("_f16")])


def is_integer(fmt: Format) -> bool:
    """Whether a tensor holds whole numbers that are no weights: tables of tokens, say."""
    return fmt.is_scalar and fmt.fields[0][1] in ("i8", "i16", "i32", "i64")


def fallback_text(name: str, plan: Plan) -> str | None:
    """The warning about matrices that fall back to other formats."""
    moved = Counter((item.wanted.name, item.format.name) for item in plan.values() if item.wanted != item.format)
    if not moved:
        return None
    matrices = sum(item.is_matrix for item in plan.values())
    moves = ", ".join(f"{count} from {wanted} to {got}" for (wanted, got), count in moved.most_common())
    return (
        f"{name}: {moved.total()} of {matrices} matrices fall back, since their rows are not whole blocks: "
        f"{moves}; the model takes {bits_per_weight(plan):.2f} bits per weight"
    )


def bits_per_weight(plan: Plan) -> float:
    return 8 * sum(item.nbytes for item in plan.values()) / sum(prod(item.shape) for item in plan.values())


def packed_format(plan: Plan) -> str | None:
    """The format of most weights of the source, if none is a float."""
    matrices = [item for item in plan.values() if item.is_matrix]
    return None if any(item.source.name in FLOATS for item in matrices) else _most_common(matrices)


def packed_again(plan: Plan) -> str | None:
    """The format of most weights that are packed already and become others."""
    return _most_common([i for i in plan.values() if i.is_matrix and not i.source.is_scalar and i.format != i.source])


def _most_common(matrices: list[TensorPlan]) -> str | None:
    weights: Counter[str] = Counter()
    for item in matrices:
        weights[item.source.name] += prod(item.shape)
    return weights.most_common(1)[0][0] if weights else None


def _nbytes(shape: tuple[int, ...], fmt: Format) -> int:
    return prod(shape[:-1]) * fmt.row_bytes(shape[-1])
