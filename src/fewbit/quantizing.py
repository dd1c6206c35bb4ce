"""Quantizing a model when it is loaded: tensor by tensor, a few rows at a time, into a GGUF file that is kept.

A mix says which format each tensor gets. To add one, write a line in `MIXES`: the format of most matrices, then those
of others by the end of their names; `more` is for every third layer and the first and last eighth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import bytes_for
from .errors import DataError, DtypeError, FewbitError, FileError, FormatError, OutOfMemory
from .files.gguf import Deferred, read_gguf, write_gguf
from .files.hub.folder import Progress, cache_folder, key, locked, make_folder, need_space, silent
from .files.hub.names import model_name
from .files.model import ModelFile
from .formats import Format, all_formats, get
from .loading import model_fingerprint
from .ops.cpu import quantize
from .tensor import QuantTensor

CHUNK_VALUES = 8 << 20  # that are floats at a time
FLOATS = ("f32", "f16", "bf16")
VERSION = "1"  # of what is made: another one is made anew

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_KEPT = ("_norm", "ffn_gate_inp", "ffn_gate_inp_shexp", "conv1d", "shortconv.conv", "position_embd", "token_types")


@dataclass(frozen=True)
class Mix:
    """The format of most matrices, and of some by their names."""

    usual: str
    output: str = ""  # of logits
    others: Mapping[str, str] = field(default_factory=dict)  # by the name without the layer
    more: Mapping[str, str] = field(default_factory=dict)  # the same, in some layers


def _sensitive(name: str) -> dict[str, str]:
    return dict.fromkeys(("attn_v", "ffn_down", "ffn_down_exps"), name)


MIXES = {
    "q3_k_m": Mix("q3_k", "q6_k", {"attn_output": "q4_k", "attn_qkv": "q4_k", **_sensitive("q4_k")}),
    "q4_k_s": Mix("q4_k", "q6_k"),
    "q4_k_m": Mix("q4_k", "q6_k", {"attn_qkv": "q5_k"}, _sensitive("q6_k")),
    "q5_k_s": Mix("q5_k", "q6_k"),
    "q5_k_m": Mix("q5_k", "q6_k", {"attn_qkv": "q6_k"}, _sensitive("q6_k")),
}


def read_mix(name: Any) -> tuple[str, Mix]:
    """A mix, or one format for all matrices, by name.

    >>> read_mix("Q4_K_M")[1].usual, read_mix("q8_0")[1].usual
    ('q4_k', 'q8_0')
    """
    if not isinstance(name, str):
        raise DtypeError(f'format is a name like "q4_k_m", not {type(name).__name__}')
    plain = name.lower().replace("-", "_")
    if plain in MIXES:
        return plain, MIXES[plain]
    if plain not in known_formats():
        raise FormatError(f"there is no format {name!r} to load a model in; there are: {', '.join(known_formats())}")
    return plain, Mix(plain)


def known_formats() -> list[str]:
    """What a model can be loaded in.

    >>> [name for name in known_formats() if name.startswith("q4")]
    ['q4_k_s', 'q4_k_m', 'q4_0', 'q4_1', 'q4_k']
    """
    usable = [fmt for fmt in all_formats().values() if fmt.gguf is not None and fmt.rule != "none" and not fmt.sums]
    return [*MIXES, *(fmt.name for fmt in usable if fmt.block > 1 or fmt.name in FLOATS)]


def choose(mix: Mix, name: str, shape: tuple[int, ...], layers: int, tied: bool) -> Format:
    """The format of a tensor. Norms, biases and small tables stay floats; rows that are no whole blocks get q8_0,
    else f16.

    >>> mix = MIXES["q4_k_m"]
    >>> [choose(mix, f"blk.{i}.ffn_down.weight", (8, 256), 16, False).name for i in (0, 3, 4)]
    ['q6_k', 'q4_k', 'q6_k']
    >>> choose(mix, "output.weight", (8, 96), 16, False).name, choose(mix, "output_norm.weight", (8,), 16, False).name
    ('q8_0', 'f32')
    """
    if len(shape) < 2 or not name.endswith(".weight") or name.removesuffix(".weight").endswith(_KEPT):
        return get("f32")
    part = _LAYER.fullmatch(name)
    wanted = mix.usual
    if name == ("token_embd.weight" if tied else "output.weight"):
        wanted = mix.output or mix.usual
    elif part:
        layer, of = int(part[1]), part[2].removesuffix(".weight")
        wanted = mix.others.get(of, wanted)
        wanted = mix.more.get(of, wanted) if _gets_more(layer, layers) else wanted
    fits = (fmt for fmt in (get(wanted), get("q8_0")) if not shape[-1] % fmt.block)
    return next(fits, get("f16"))


def _gets_more(layer: int, layers: int) -> bool:
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def quantized(file: ModelFile, format: str, keep: bool = True, progress: Progress | None = None) -> ModelFile:
    """The model of a file in another format, as a GGUF file in the cache folder: made once, found from then on.

    Without `keep` it has no name there, and is gone when nobody uses it any more.
    """
    name, mix = read_mix(format)
    plans = _plan(file, mix)
    report = silent if progress is None else progress
    metadata = _metadata(file)  # a folder's chat template may change while its tensors do not
    said = json.dumps(metadata, sort_keys=True, default=lambda values: [str(value) for value in values])
    folder = cache_folder() / "quantized" / key(model_fingerprint(file), name, VERSION, said)
    path = folder / f"{model_name(file.path)}-{name}.gguf"
    if keep and (known := _known(path)):
        return known
    with locked(folder, path.name, report):
        if keep and (known := _known(path)):
            return known
        need_space(folder, sum(_nbytes(*plan) for plan in plans.values()), path.name)
        _write(path, file, metadata, plans, f"quantizing to {name}", report)
        made = read_gguf(path)
        if not keep:
            path.unlink()
    return made


def _known(path: Path) -> ModelFile | None:
    with suppress(FewbitError):  # it is made again
        return read_gguf(path)
    return None


def _plan(file: ModelFile, mix: Mix) -> dict[str, tuple[tuple[int, ...], Format]]:
    """Shape and format of each tensor. Those that are packed already stay as they are."""
    layers, tied = int(file.config.get("block_count", 0)), "output.weight" not in file.infos
    plans = {
        name: (info.shape, choose(mix, name, info.shape, layers, tied) if info.format.name in FLOATS else info.format)
        for name, info in file.infos.items()
    }
    if not any(len(info.shape) > 1 and info.format.name in FLOATS for info in file.infos.values()):
        usual = max(file.infos.values(), key=lambda info: prod(info.shape)).format
        raise FileError(
            f"{file.path}: the model is quantized already, mostly to {usual}; format is for models in f32, f16 or bf16"
        )
    return plans


def _nbytes(shape: tuple[int, ...], fmt: Format) -> int:
    return prod(shape[:-1]) * fmt.row_bytes(shape[-1])


def _metadata(file: ModelFile) -> dict[str, Any]:
    config = {f"{file.architecture}.{name}": value for name, value in file.config.items()}
    return {"general.architecture": file.architecture} | config | dict(file.tokenizer())


def _write(
    path: Path,
    file: ModelFile,
    metadata: Mapping[str, Any],
    plans: Mapping[str, tuple[tuple[int, ...], Format]],
    what: str,
    report: Progress,
) -> None:
    total = sum(_nbytes(info.shape, info.format) for info in file.infos.values())
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        report(what, done, total)

    report(what, 0, total)
    tensors = {
        name: Deferred(shape, fmt, lambda name=name, fmt=fmt: _packed(file, name, fmt, advance))  # type: ignore[misc]
        for name, (shape, fmt) in plans.items()
    }
    make_folder(path.parent)
    write_gguf(path, metadata, tensors)


def _packed(file: ModelFile, name: str, fmt: Format, advance: Any) -> QuantTensor:
    """A tensor in its new format; the file's memory is released."""
    tensor = file.tensors[name]
    try:
        if tensor.format == fmt:
            advance(tensor.nbytes)
            return tensor
        k = tensor.shape[-1]
        rows = QuantTensor(tensor.stored, (tensor.rows, k), tensor.format)
        out, each = bytes_for(tensor.rows * fmt.row_bytes(k)), fmt.row_bytes(k)
        step = max(1, CHUNK_VALUES // max(1, k))
        for at in range(0, tensor.rows, step):
            chunk = rows[at : at + step]
            out[at * each : (at + len(chunk)) * each] = _encoded(chunk, fmt)
            advance(chunk.nbytes)
        return QuantTensor(out, tensor.shape, fmt)
    except DataError as error:
        raise DataError(f"{file.path}: tensor {name} cannot be quantized: {error}") from None
    except MemoryError:
        raise OutOfMemory(f"{file.path}: no memory to quantize tensor {name}; close other programs") from None
    finally:
        file.forget(name)


def _encoded(chunk: QuantTensor, fmt: Format) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return quantize(chunk.dequantize(), fmt).stored
