"""A folder with a transformers checkpoint (config.json, safetensors) as a model file with GGUF names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np

from ..errors import FewbitError, FileError, MissingError, ShapeError
from ..files.maps import FileMap
from ..files.prequantized import Prequantized, Weight, open_prequantized
from ..files.safetensors import FORMATS, Safetensors, read_json, read_safetensors
from ..files.shown import short
from ..files.tokenizer_json import read_tokenizer
from ..formats import Format, get
from ..tensor import QuantTensor
from .adapter import Adapter, Recipe
from .transforms import Array
from .transforms import Config as RawConfig

_VIEWS = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}
_WRONG = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError, StopIteration,
    MemoryError,
)  # fmt: skip


# What the text part of a published config.json leaves out where it is as transformers has it by default.
_LLAMA = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6}
LEFT_OUT: Mapping[str, dict[str, Any]] = {
    "llama": _LLAMA | {"intermediate_size": 11008, "max_position_embeddings": 2048},
    "mistral": _LLAMA | {"intermediate_size": 14336, "max_position_embeddings": 131072, "num_key_value_heads": 8,
                         "sliding_window": 4096},
}  # fmt: skip


class CheckpointAdapter(Protocol):
    """Says what GGUF's hyperparameters and tensors are made of."""

    @property
    def made(self) -> Callable[[RawConfig], dict[str, Array]]: ...

    def hyperparameters(self, config: RawConfig) -> dict[str, Any]: ...

    def recipes(self, names: Iterable[str], config: RawConfig) -> dict[str, Recipe]: ...


@dataclass(frozen=True, slots=True)
class MadeTensor:
    """Shape and format of a tensor that is made when it is read."""

    shape: tuple[int, ...]
    format: Format

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.format.row_bytes(self.shape[-1])


class Directory:
    """A `ModelFile` over a folder. Tensors that need no change share its bytes; others are converted when read."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path = path
        self._raw = read_config(path / "config.json")
        self.architecture, adapter = find_adapter(self._raw, names, path)
        self._join_tensors(adapter, open_tensors(path, self._raw))

    def _join_tensors(self, adapter: CheckpointAdapter, stored: Safetensors | Prequantized) -> None:
        self._adapter, self._stored = adapter, stored
        self.file_bytes = self._stored.file_bytes
        self.config = self._checked("config.json", lambda: self._adapter.hyperparameters(self._raw))
        self._made = self._checked("config.json", lambda: self._adapter.made(self._raw))
        self._recipes = self._checked("the checkpoint", lambda: self._adapter.recipes(self._stored, self._raw))
        self.tensors = _Tensors(self)

    @cached_property
    def infos(self) -> Mapping[str, MadeTensor]:
        """Shape and format of each tensor, without making it."""
        made = {name: MadeTensor(array.shape or (1,), get("f32")) for name, array in self._made.items()}
        return made | {name: self._info(name, recipe) for name, recipe in self._recipes.items()}

    def tokenizer(self) -> Mapping[str, Any]:
        """The tokenizer as GGUF metadata, from tokenizer.json and the files beside it."""
        return read_tokenizer(self.path, self._raw) | {"general.architecture": self.architecture}

    def template(self) -> str | None:
        """The source of the chat template."""
        source = self.tokenizer().get("tokenizer.chat_template")
        return source if isinstance(source, str) else None

    def samples(self, nbytes: int) -> Iterator[bytes]:
        """Name, type, shape and a sample of the bytes of each stored tensor: they identify a checkpoint."""
        for name in sorted(self._stored):
            info, data = self._stored.infos[name], self._stored.data(name)
            yield f"{name} {info.dtype} {info.shape}".encode()
            yield data[:nbytes].tobytes() + data[data.nbytes // 2 :][:nbytes].tobytes()

    @property
    def maps(self) -> WeakSet[FileMap]:
        """The memory maps that are in use."""
        return self._stored.maps

    def forget(self, name: str) -> None:
        """Release the file's memory that a tensor was made of."""
        for sources in self._recipes[name].sources if name in self._recipes else ():
            for source in sources:
                self._stored.forget(source)

    def close(self) -> None:
        """Close the files. Tensors that were read stay valid."""
        self._stored.close()

    def __repr__(self) -> str:
        return f"<Directory {self.path.name}: {self.architecture}, {len(self.tensors)} tensors>"

    def make(self, name: str) -> QuantTensor:
        """A tensor by its name in GGUF."""
        if name in self._made:
            return _packed(self._made[name], get("f32"))
        if name not in self._recipes:
            raise MissingError(f"{self.path}: there is no tensor {short(name)} among its {len(self.tensors)}")
        recipe = self._recipes[name]
        if recipe.transform is None and not recipe.stacked:
            tensor = self._stored[recipe.sources[0][0]]
            is_kept = tensor.format.name in _VIEWS or not tensor.format.is_scalar
            return tensor if is_kept else _packed(tensor.dequantize(), get("f32"))
        made = [self._checked(name, lambda s=s: self._transformed(recipe, s)) for s in recipe.sources]
        if len({array.shape for array in made}) > 1:
            raise ShapeError(f"{self.path}: the experts of {name} have different shapes")
        array = np.stack(made) if recipe.stacked else made[0]
        if (fmt := self._format(recipe)).placement == "row":
            return QuantTensor.from_bytes(np.ascontiguousarray(array).reshape(-1), self.infos[name].shape, fmt)
        return _packed(array, fmt)

    def _transformed(self, recipe: Recipe, sources: tuple[str, ...]) -> Array:
        arrays = [self._array(source, recipe) for source in sources]
        return arrays[0] if recipe.transform is None else recipe.transform(*arrays, config=self._raw)

    def _array(self, source: str, recipe: Recipe) -> Array:
        if recipe.transform is not None and recipe.transform.packs:
            return self._stored.data(source).reshape(self._stored.infos[source].shape)
        tensor = self._stored[source]
        if self._format(recipe).placement == "row":
            return tensor.data.reshape(tensor.shape[0], -1)
        if self._format(recipe).name == "f32" and tensor.format.name != "f32":
            return tensor.dequantize()
        return tensor.data.view(_VIEWS[tensor.format.name]).reshape(tensor.shape)

    def _format(self, recipe: Recipe) -> Format:
        """The format of the sources; f32 where they differ, are not plain floats, or are transformed arithmetically."""
        if recipe.transform is not None and recipe.transform.packs:
            return get(recipe.transform.packs)
        infos = [self._stored.infos[source] for sources in recipe.sources for source in sources]
        kinds = {info.dtype for info in infos}
        if isinstance(infos[0], Weight) and infos[0].format.placement == "row" and len(kinds) == 1:
            return infos[0].format if recipe.transform is None or recipe.transform.moves_rows else get("f32")
        name = FORMATS.get(kinds.pop(), "") if len(kinds) == 1 else ""
        computes = recipe.transform is not None and recipe.transform.computes
        return get(name if name in _VIEWS and not computes else "f32")

    def _info(self, name: str, recipe: Recipe) -> MadeTensor:
        """Shape and format, from running the transform on broadcast zeros."""
        fmt = self._format(recipe)
        zero = np.zeros((), _VIEWS.get(fmt.name, "u1"))
        zeros = [np.broadcast_to(zero, self._stored.infos[source].shape) for source in recipe.sources[0]]
        apply = recipe.transform
        made = zeros[0] if apply is None else self._checked(name, lambda: apply(*zeros, config=self._raw))
        shape = made.shape or (1,)
        if apply is not None and apply.packs:
            shape = (*shape[:-1], shape[-1] // fmt.block_bytes * fmt.block)
        return MadeTensor((len(recipe.sources), *shape) if recipe.stacked else shape, fmt)

    def _checked(self, what: str, make: Any) -> Any:
        """Run `make`; malformed contents become one kind of error."""
        try:
            return make()
        except FewbitError as error:
            raise type(error)(f"{self.path}: {error}") if str(self.path) not in str(error) else error from None
        except _WRONG as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise FileError(f"{self.path}: {what} does not fit {self.architecture} models: {why}") from None


class _Tensors(Mapping[str, QuantTensor]):
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._names = [*directory._made, *directory._recipes]
        self._known = set(self._names)

    def __getitem__(self, name: str) -> QuantTensor:
        return self._directory.make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _packed(array: Array, fmt: Format) -> QuantTensor:
    data = np.ascontiguousarray(array)
    shape = data.shape or (1,)
    if fmt.name not in _VIEWS:
        shape = (*shape[:-1], shape[-1] // fmt.block_bytes * fmt.block)
    return QuantTensor.from_bytes(data.reshape(-1).view(np.uint8), shape, fmt)


def read_config(path: Path) -> dict[str, Any]:
    """Read config.json: the text part of a multimodal model, with all rope parameters in one dictionary, `rope`."""
    given = read_json(path)
    if not isinstance(given, dict):
        raise FileError(f"{path}: it must hold an object with hyperparameters, not {short(given)}")
    text = text_part(given)
    config = {**given, **text, "architectures": given.get("architectures"), "text_model": text.get("model_type")}
    return config | _rope(config) | _pooling(path.parent)


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text part of a multimodal model's config.json, with what it leaves out; none of another model's.

    >>> text_part({"text_config": {"model_type": "mistral", "hidden_size": 5120}})["num_attention_heads"]
    32
    """
    text = config.get("text_config")
    return LEFT_OUT.get(str(text.get("model_type")), {}) | text if isinstance(text, dict) else {}


def open_tensors(path: Path, config: Mapping[str, Any]) -> Safetensors | Prequantized:
    """The tensors of a checkpoint; matrices that a library quantized are single tensors."""
    stored, given = read_safetensors(path), config.get("quantization_config")
    if not given:
        return stored
    if not isinstance(given, dict):
        raise FileError(f"{path}: quantization_config must be an object, it is {short(given)}")
    return stored if given.get("quant_method") == "mxfp4" else open_prequantized(stored, given)


def _pooling(folder: Path) -> dict[str, int]:
    """The pooling type in sentence-transformers' config, as GGUF's number."""
    _refuse_dense(folder / "modules.json")
    path = folder / "1_Pooling" / "config.json"
    given = read_json(path) if path.is_file() else {}
    names = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
    kinds = [kind for name, kind in names.items() if isinstance(given, dict) and given.get(name) is True]
    return {"pooling_type": kinds[0]} if kinds else {}


def _refuse_dense(path: Path) -> None:
    """Refuse models with dense layers after pooling: their weights are in folders that are not read."""
    modules = read_json(path) if path.is_file() else []
    for module in modules if isinstance(modules, list) else []:
        if isinstance(module, dict) and str(module.get("type")).endswith(".Dense"):
            raise FileError(
                f"{path}: the product after pooling in {short(module.get('path'))} is not read from folders; "
                "look for a GGUF file that has it"
            )


def _rope(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Rope parameters, wherever a version of transformers keeps them; `rope_local` for layers with a window."""
    given = config.get("rope_parameters") or config.get("rope_scaling")
    given = given if isinstance(given, dict) else {}
    by_layer = {kind: given.get(kind) for kind in ("full_attention", "sliding_attention")}
    rope = by_layer["full_attention"] if isinstance(by_layer["full_attention"], dict) else given
    local = by_layer["sliding_attention"] if isinstance(by_layer["sliding_attention"], dict) else {}
    usual = {
        "rope_theta": config.get("rope_theta"),
        "rope_type": rope.get("type"),
        "partial_rotary_factor": config.get("partial_rotary_factor"),
        "original_max_position_embeddings": config.get("original_max_position_embeddings"),
    }
    if config.get("rope_local_base_freq") is not None:
        local = {"rope_theta": config["rope_local_base_freq"], **local}
    return {"rope": usual | {k: v for k, v in rope.items() if v is not None}, "rope_local": local}


def find_adapter(config: Mapping[str, Any], names: list[str], path: Path) -> tuple[str, Adapter]:
    """The GGUF name of the architecture that reads a checkpoint, and its adapter; `names` are the candidates."""
    given = config.get("architectures")
    wanted = given[0] if isinstance(given, list) and given and isinstance(given[0], str) else None
    if wanted is None:
        raise FileError(f"{path}: config.json must name the model's class in architectures, it has {short(given)}")
    known: list[str] = []
    for name in names:
        adapter = getattr(import_module(f".{name.replace('-', '_')}", __package__), "HF", None)
        if adapter is not None and wanted in adapter.architectures and adapter.fits(config):
            return name, adapter
        known += adapter.architectures if adapter is not None else ()
    if wanted in known:
        raise FileError(f"{path}: {short(wanted)} checkpoints are known, but not with this text model")
    raise FileError(f"{path}: {short(wanted)} checkpoints are not known; there are: {', '.join(sorted(known))}")
