"""Quantizing a model when it is loaded: tensor by tensor, a few rows at a time, into a GGUF file that is kept.

A mix says which format each tensor gets. To add one, write a line in `MIXES`: the format of most matrices, then those
of others by their names; `boosted` is for every third layer and the first and last eighth. A matrix whose rows are not
whole blocks of its format gets another one (`FALLBACKS`).
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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

CHUNK_VALUES = 8 << 20  # decoded to floats at a time
FLOATS = ("f32", "f16", "bf16")
SAMPLE_ROWS = 16  # of a matrix, to estimate the error of a format
TOLERATED_LOSS = 0.1  # relative RMS error
VERSION = "2"  # of the written files; others are written again

Plans = Mapping[str, tuple[tuple[int, ...], Format]]  # shape and format of each tensor

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_KEPT = ("_norm", "ffn_gate_inp", "ffn_gate_inp_shexp", "conv1d", "shortconv.conv", "position_embd", "token_types")


@dataclass(frozen=True)
class Mix:
    """The format of most matrices, and of some by their names."""

    usual: str
    output: str = ""  # of logits
    others: Mapping[str, str] = field(default_factory=dict)  # by the name without the layer
    boosted: Mapping[str, str] = field(default_factory=dict)  # the same, in some layers


def _sensitive(name: str) -> dict[str, str]:
    return dict.fromkeys(("attn_v", "ffn_down", "ffn_down_exps"), name)


MIXES = {
    "q3_k_m": Mix("q3_k", "q6_k", {"attn_output": "q4_k", "attn_qkv": "q4_k", **_sensitive("q4_k")}),
    "q4_k_s": Mix("q4_k", "q6_k"),
    "q4_k_m": Mix("q4_k", "q6_k", {"attn_qkv": "q5_k"}, _sensitive("q6_k")),
    "q5_k_s": Mix("q5_k", "q6_k"),
    "q5_k_m": Mix("q5_k", "q6_k", {"attn_qkv": "q6_k"}, _sensitive("q6_k")),
}

# What a matrix gets whose rows are not whole blocks: llama.cpp's choices, which have blocks of 32. It has none for q1_0
# and nvfp4.
FALLBACKS = {
    "q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "iq4_xs": "iq4_nl",
    "q1_0": "q4_0", "q2_0": "q4_0", "tq1_0": "q4_0", "tq2_0": "q4_0", "nvfp4": "q4_0",
}  # fmt: skip


def read_mix(name: Any) -> tuple[str, Mix]:
    """A mix, or one format for all matrices, by name. A model trained with ternary weights has ordinary embeddings and
    logits, so they get other formats.

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
    if get(plain).made_for:
        return plain, Mix(plain, "q6_k", {"token_embd": "q4_k"})
    return plain, Mix(plain)


def known_formats() -> list[str]:
    """What a model can be loaded in.

    >>> [name for name in known_formats() if name.startswith("q4")]
    ['q4_k_s', 'q4_k_m', 'q4_0', 'q4_1', 'q4_k']
    """
    usable = [fmt for fmt in all_formats().values() if fmt.gguf is not None and fmt.rule != "none" and not fmt.sums]
    return [*MIXES, *(fmt.name for fmt in usable if fmt.block > 1 or fmt.name in FLOATS)]


def choose(mix: Mix, name: str, shape: tuple[int, ...], layers: int, tied: bool) -> Format:
    """The format of a tensor in a mix, whatever the length of its rows. Norms, biases and small tables stay floats.

    >>> mix = MIXES["q4_k_m"]
    >>> [choose(mix, f"blk.{i}.ffn_down.weight", (8, 256), 16, False).name for i in (0, 3, 4)]
    ['q6_k', 'q4_k', 'q6_k']
    >>> choose(mix, "output.weight", (8, 256), 16, False).name, choose(mix, "output_norm.weight", (8,), 16, False).name
    ('q6_k', 'f32')
    """
    if len(shape) < 2 or not name.endswith(".weight") or name.removesuffix(".weight").endswith(_KEPT):
        return get("f32")
    if name == ("token_embd.weight" if tied else "output.weight"):
        return get(mix.output or mix.usual)
    in_layer = _LAYER.fullmatch(name)
    matrix = (in_layer[2] if in_layer else name).removesuffix(".weight")
    wanted = mix.others.get(matrix, mix.usual)
    if in_layer and _is_boosted(int(in_layer[1]), layers):
        wanted = mix.boosted.get(matrix, wanted)
    return get(wanted)


def fitting(fmt: Format, width: int) -> Format:
    """A format whose blocks divide rows of `width` values: this one, else its fallback, else f16.

    >>> [fitting(get("q4_k"), width).name for width in (512, 576, 100)]
    ['q4_k', 'q5_0', 'f16']
    """
    tried = (fmt, get(FALLBACKS.get(fmt.name, "f16")))
    return next((one for one in tried if width % one.block == 0), get("f16"))


def _is_boosted(layer: int, layers: int) -> bool:
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def quantized(file: ModelFile, format: str, keep: bool = True, progress: Progress | None = None) -> ModelFile:
    """The model of a file in another format, as a GGUF file in the cache folder: made once, found from then on.

    Without `keep` a new file is deleted as soon as nobody uses it; one that was kept earlier is used and stays.
    It warns of matrices that fall back to another format when it makes the file, and of formats that spoil the model.

    Args:
        file: A model with weights in f32, f16 or bf16; tensors that are packed already stay as they are.
        format: A mix such as "q4_k_m", or a format for all matrices.
        keep: Keep the file for the next time.
        progress: Called with what is done, bytes done and bytes in all.
    """
    name, mix = read_mix(format)
    plans, fallbacks = _plan(file, mix)
    report = silent if progress is None else progress
    _warn_about_loss(file, plans)
    metadata = _metadata(file)  # a folder's chat template may change while its tensors do not
    text = json.dumps(metadata, sort_keys=True, default=lambda values: [str(value) for value in values])
    folder = cache_folder() / "quantized" / key(model_fingerprint(file), name, VERSION, text)
    path = folder / f"{model_name(file.path)}-{name}.gguf"
    if known := _known(path):
        return known
    with locked(folder, path.name, report):
        if known := _known(path):
            return known
        need_space(folder, sum(_nbytes(*plan) for plan in plans.values()), path.name)
        if fallbacks:
            warnings.warn(_fallback_text(name, plans, fallbacks), stacklevel=3)
        with _place(path, keep) as place:
            _write(place, file, metadata, plans, f"quantizing to {name}", report)
            return read_gguf(place)


@contextmanager
def _place(path: Path, keep: bool) -> Iterator[Path]:
    """The path to write to; without `keep`, one that is deleted when the file is open."""
    if keep:
        yield path
        return
    place = path.with_suffix(".unkept")
    try:
        yield place
    finally:
        place.unlink(missing_ok=True)


def _known(path: Path) -> ModelFile | None:
    with suppress(FewbitError):  # it is written again
        return read_gguf(path)
    return None


def _plan(file: ModelFile, mix: Mix) -> tuple[Plans, Counter[tuple[str, str]]]:
    """Shape and format of each tensor, and how many fell back from which format to which."""
    layers, tied = int(file.config.get("block_count", 0)), "output.weight" not in file.infos
    floats = {name: info.shape for name, info in file.infos.items() if info.format.name in FLOATS}
    matrices = _weights_by_format(file)
    if matrices and not matrices.keys() & set(FLOATS):
        usual = matrices.most_common(1)[0][0]
        raise FileError(
            f"{file.path}: the model is quantized already, mostly to {usual}; format is for models in f32, f16 or bf16"
        )
    plans = {name: (info.shape, info.format) for name, info in file.infos.items()}
    fallbacks: Counter[tuple[str, str]] = Counter()
    for name, shape in floats.items():
        wanted = choose(mix, name, shape, layers, tied)
        plans[name] = shape, fitting(wanted, shape[-1])
        if plans[name][1] != wanted:
            fallbacks[wanted.name, plans[name][1].name] += 1
    return plans, fallbacks


def _weights_by_format(file: ModelFile) -> Counter[str]:
    """Number of weights in matrices, by format."""
    weights: Counter[str] = Counter()
    for info in file.infos.values():
        if len(info.shape) > 1:
            weights[info.format.name] += prod(info.shape)
    return weights


def _fallback_text(name: str, plans: Plans, fallbacks: Counter[tuple[str, str]]) -> str:
    """The warning about matrices that fell back to other formats."""
    matrices = sum(len(shape) > 1 for shape, _ in plans.values())
    moves = ", ".join(f"{count} from {wanted} to {got}" for (wanted, got), count in fallbacks.most_common())
    bits = 8 * sum(_nbytes(*plan) for plan in plans.values()) / sum(prod(shape) for shape, _ in plans.values())
    return (
        f"{name}: {fallbacks.total()} of {matrices} matrices fall back, since their rows are not whole blocks: "
        f"{moves}; the model takes {bits:.2f} bits per weight"
    )


def _warn_about_loss(file: ModelFile, plans: Plans) -> None:
    """Warn if a format is for models trained in it and one matrix of this model shows that it was not."""
    special = (name for name, (_, fmt) in plans.items() if fmt.made_for and file.infos[name].format.name in FLOATS)
    name = next(special, None)
    if name is None:
        return
    fmt = plans[name][1]
    loss = _loss(file, name, fmt)
    if loss > TOLERATED_LOSS:
        warnings.warn(
            f"{fmt} is made for {fmt.made_for}: the weights of this model change by {loss:.0%} and its output will be "
            "nonsense; q4_k_m suits other models",
            stacklevel=4,
        )


def _loss(file: ModelFile, name: str, fmt: Format) -> float:
    """The relative RMS error of a few rows of a tensor in a format; 0 where they cannot be packed."""
    values = _matrix(file.tensors[name])[:SAMPLE_ROWS].dequantize()
    file.forget(name)
    size = float(np.linalg.norm(values))
    with suppress(DataError):  # raised again, with the tensor's name, when all rows are packed
        return float(np.linalg.norm(values - quantize(values, fmt).dequantize())) / size if size else 0.0
    return 0.0


def _matrix(tensor: QuantTensor) -> QuantTensor:
    return QuantTensor(tensor.stored, (tensor.rows, tensor.shape[-1]), tensor.format)


def _nbytes(shape: tuple[int, ...], fmt: Format) -> int:
    return prod(shape[:-1]) * fmt.row_bytes(shape[-1])


def _metadata(file: ModelFile) -> dict[str, Any]:
    config = {f"{file.architecture}.{name}": value for name, value in file.config.items()}
    return {"general.architecture": file.architecture} | config | dict(file.tokenizer())


def _write(
    path: Path,
    file: ModelFile,
    metadata: Mapping[str, Any],
    plans: Plans,
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
        rows = _matrix(tensor)
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
