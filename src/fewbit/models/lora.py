"""Adapters for a model: PEFT's modules become GGUF's tensors, and terms find the products that they change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib import import_module
from typing import Any

import numpy as np

from ..errors import FewbitError, FileError, ShapeError
from ..files.lora import AdapterFile, Factors, read_adapter
from ..files.model import ModelFile
from ..files.shown import short
from ..ops.graph import Graph
from ..ops.low_rank import LowRank, ProductKey, Terms
from ..tensor import QuantTensor
from .adapter import Adapter, Recipe
from .checkpoint import Rows
from .transforms import TRANSPOSED, Array, Config, Transform

OUTPUT, TABLE = "output.weight", "token_embd.weight"
_WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product of a model that adapters can change: a matrix of its file, some of its rows, or a table."""

    name: str  # of the tensor in the file; of tied heads "output.weight"
    key: ProductKey
    rows: Rows | None  # of the tensor; None: all
    shape: tuple[int, int]
    scale: float = 1.0  # of the rows of a table


@dataclass(frozen=True, slots=True, eq=False)
class Adaptation:
    """What an adapter adds to the products of a model, and a text that is the same for the same values."""

    terms: Terms
    key: str


class AdapterReader:
    """Reads adapters for a model.

    Args:
        file: The model's file.
        products: Its products.
    """

    def __init__(self, file: ModelFile, products: Sequence[Product]) -> None:
        self._file = file
        self.products: dict[str, list[Product]] = {}
        for product in products:
            self.products.setdefault(product.name, []).append(product)

    def read(self, path: Any) -> Adaptation:
        """Read an adapter. One that is not for this model is refused with the first thing that does not fit."""
        adapter = gguf_names(read_adapter(path), self._file)
        digest = blake2b(digest_size=16)
        terms: dict[ProductKey, LowRank] = {}
        for name, factors in sorted(adapter.factors.items()):
            for part in (factors.a, factors.b):
                digest.update(f"{name} {factors.scale!r} {part.dtype} {part.shape}".encode())
                digest.update(part.tobytes())
            terms.update(self._terms(adapter, name, factors))
        for name, tensor in sorted(adapter.replaced.items()):
            digest.update(f"{name} {tensor.format.name} {tensor.shape}".encode())
            digest.update(tensor.data.tobytes())
            terms.update(self._replacements(adapter, name, tensor))
        return Adaptation(terms, digest.hexdigest())

    def _terms(self, adapter: AdapterFile, name: str, factors: Factors) -> Iterator[tuple[ProductKey, LowRank]]:
        shape = self._shape(adapter, name)
        k = factors.a.shape[0] if factors.is_table else factors.a.shape[1]
        given = (k, factors.b.shape[0]) if factors.is_table else (factors.b.shape[0], k)
        check_shape(adapter, name, given, shape)
        for product in self._products(adapter, name, factors.is_table):
            b = factors.b if product.rows is None else factors.b[slice(*product.rows)]
            n = b.shape[0]
            yield product.key, LowRank(factors.a, b, factors.scale * product.scale, n, k)

    def _replacements(
        self, adapter: AdapterFile, name: str, tensor: QuantTensor
    ) -> Iterator[tuple[ProductKey, LowRank]]:
        """The difference between a whole tensor and the model's, as a term of full rank."""
        shape = self._shape(adapter, name)
        check_shape(adapter, name, tensor.shape, shape)
        stored = self._file.tensors[name if name in self._file.tensors else TABLE]
        difference = tensor.dequantize() - stored.dequantize()
        if not np.isfinite(difference).all():
            raise FileError(f"{adapter.path}: tensor {name} holds values that are not finite")
        if not difference.any():
            return
        for product in self._products(adapter, name, None):
            if product.key[0] == "embed":
                yield product.key, LowRank(difference, None, product.scale, *product.shape)
                continue
            b = difference if product.rows is None else difference[slice(*product.rows)]
            yield product.key, LowRank(None, np.ascontiguousarray(b), 1.0, *product.shape)

    def _shape(self, adapter: AdapterFile, name: str) -> tuple[int, ...]:
        """The shape of a tensor of the model that a product reads."""
        stored = TABLE if name == OUTPUT and OUTPUT not in self._file.infos else name
        if name not in self.products:
            known = stored in self._file.infos
            why = "is no matrix that adapters can change here" if known else "is not in the model"
            raise FileError(f"{adapter.path}: tensor {short(name)} {why}; is the adapter for another model?")
        return self._file.infos[stored].shape

    def _products(self, adapter: AdapterFile, name: str, is_table: bool | None) -> list[Product]:
        """Those of a tensor: as a table, as a matrix, or None: as whatever it is."""
        found = [one for one in self.products[name] if is_table is None or (one.key[0] == "embed") == is_table]
        if not found:
            kind = "an embedding table" if not is_table else "a matrix"
            raise FileError(f"{adapter.path}: tensor {short(name)} is {kind}, its term is not made for one")
        return found


def find_products(graph: Graph, places: Mapping[int, tuple[str, Rows | None]]) -> list[Product]:
    """The products of a graph that adapters can change.

    Args:
        graph: A model's graph, as it was recorded.
        places: The tensor and rows of the model's matrices, by `id`.
    """
    found: dict[ProductKey, Product] = {}
    for node in graph.nodes:
        if node.operation not in ("linear", "embed"):
            continue
        is_table = node.operation == "embed"
        w = node.attributes["table" if is_table else "w"]
        if id(w) not in places:
            continue
        name, rows = places[id(w)]
        key = node.operation, id(w)
        if is_table:
            tokens, width = w.shape
            found[key] = Product(name, key, None, (width, tokens), node.attributes["scale"])
        else:
            found[key] = Product(OUTPUT if name == TABLE else name, key, rows, w.shape)
    return [*found.values()]


def gguf_names(adapter: AdapterFile, file: ModelFile) -> AdapterFile:
    """An adapter whose names are those of GGUF's tensors, for the model of a file."""
    if adapter.architecture is not None:
        if adapter.architecture != file.architecture:
            model = f"{short(adapter.architecture)} models, this is {short(file.architecture)}"
            raise FileError(f"{adapter.path}: the adapter is for {model}")
        return adapter
    family = find_family(file.architecture)
    if family is None:
        raise FileError(f"{adapter.path}: {file.architecture} models take no adapters of PEFT; convert it to GGUF")
    config = transformers_config(family, file.config)
    factors: dict[str, Factors] = {}
    for name, term in adapter.factors.items():
        for target, recipe in _recipes(adapter, family, f"{name}.weight", config):
            factors[target] = _moved(adapter, name, term, recipe.transform, config)
    replaced: dict[str, QuantTensor] = {}
    for name, tensor in adapter.replaced.items():
        for target, recipe in _recipes(adapter, family, name, config):
            if recipe.transform is not None:
                raise FileError(f"{adapter.path}: whole tensor {short(name)} is not supported, LoRA of it is")
            replaced[target] = tensor
    return replace(adapter, architecture=file.architecture, factors=factors, replaced=replaced)


def find_family(architecture: str) -> Adapter | None:
    """The names of an architecture's checkpoints in transformers."""
    found: Adapter | None = getattr(import_module(f".{architecture.replace('-', '_')}", __package__), "HF", None)
    return found


def transformers_config(family: Adapter, config: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters of a file by the names of transformers: what transforms of tensors need."""
    found: dict[str, Any] = {"rope": {}, "num_hidden_layers": config.get("block_count", 1 << 30)}
    for key, source in family.config.items():
        value = config.get(key)
        if isinstance(value, int | float) and not callable(source):
            names = (source,) if isinstance(source, str) else source
            found |= {name: value for name in names if "." not in name and name not in found}
    return found


def _recipes(adapter: AdapterFile, family: Adapter, name: str, config: Config) -> list[tuple[str, Recipe]]:
    try:
        recipes = family.recipes([name], config)
    except (FewbitError, *_WRONG):
        recipes = {}
    if not recipes or any(recipe.stacked or len(recipe.sources[0]) > 1 for recipe in recipes.values()):
        raise FileError(f"{adapter.path}: module {short(name.removesuffix('.weight'))} cannot be changed in this model")
    return [*recipes.items()]


def _moved(adapter: AdapterFile, name: str, term: Factors, transform: Transform | None, config: Config) -> Factors:
    """The term of a tensor whose rows and columns a transform moves."""
    if transform is None or transform is TRANSPOSED:  # Conv1D: A and B are those of x @ W.T all the same
        return term
    try:
        if transform.computes or term.is_table:
            raise ValueError("its values are computed")
        left, right = move_factors(term.b, term.a, transform, config)
    except (FewbitError, *_WRONG) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{adapter.path}: {short(name)} does not fit the model: {why}") from None
    return replace(term, a=right, b=left)


def move_factors(b: Array, a: Array, transform: Transform, config: Config) -> tuple[Array, Array]:
    """The factors of what a transform makes of `b @ a`, by what it makes of the numbers of rows and columns.

    >>> from .transforms import part
    >>> b, a = np.arange(8.0).reshape(4, 2), np.arange(6.0).reshape(2, 3)
    >>> left, right = move_factors(b, a, part(1, 2), {})
    >>> np.array_equal(left @ right, (b @ a)[2:])
    True
    """
    if transform.moves_rows:
        return np.ascontiguousarray(transform(b, config=config)), a
    n, k = b.shape[0], a.shape[1]
    rows = np.broadcast_to(np.arange(n, dtype=np.int32)[:, None], (n, k))
    columns = np.broadcast_to(np.arange(k, dtype=np.int32), (n, k))
    made = [transform(each, config=config) for each in (rows, columns)]
    if made[0].ndim != 2:
        raise ValueError("it is no matrix in the model")
    if not (made[0] == made[0][:, :1]).all() or not (made[1] == made[1][:1]).all():
        raise ValueError("its values are moved in a way that keeps no rows and columns")
    return np.ascontiguousarray(b[made[0][:, 0]]), np.ascontiguousarray(a[:, made[1][0]])


def check_shape(adapter: AdapterFile, name: str, given: Sequence[int], expected: Sequence[int]) -> None:
    """Refuse a change of a tensor that has another shape in the model."""
    if tuple(given) != tuple(expected):
        sizes = [" x ".join(map(str, shape)) for shape in (given, expected)]
        raise ShapeError(
            f"{adapter.path}: the adapter changes {short(name)} of {sizes[0]}, the model's has {sizes[1]}; "
            "is it for another model?"
        )
