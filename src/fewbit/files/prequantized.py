"""Checkpoints whose matrices are quantized already, by the libraries that people use for it.

A quantized matrix is kept as several tensors, such as `q_proj.qweight`, `q_proj.qzeros` and `q_proj.scales`; here they
are one again, `q_proj.weight`. Codes of 4 bits with a scale for each group become `int4_group`, bytes with a scale for
each row `int8`: nothing is lost. Others are decoded when they are read.

To add a method: a function that makes a `Weight` of the parts of a matrix, and a line in `METHODS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from ..arrays import Bytes, Floats, Ints
from ..errors import FewbitError, FileError
from ..formats import Format, get
from ..formats.decode import read_floats
from ..formats.encode import pack_rows
from ..formats.pack import Found, write_floats
from ..tensor import QuantTensor
from .maps import FileMap
from .safetensors import FORMATS, Safetensors
from .shown import first_names, short

Array = npt.NDArray[Any]

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where the columns of eight are in a word
GROUPS = (128, 64, 32)
INT8_UNIT = 1 / 127  # bitsandbytes' scales are maxima


@dataclass(frozen=True)
class Weight:
    """A matrix as it is used: format, shape, and how its bytes are made. It has the fields of `StoredTensor`."""

    name: str
    format: Format
    shape: tuple[int, ...]
    make: Callable[[], Bytes]
    parts: tuple[str, ...]

    @property
    def dtype(self) -> str:
        return self.format.name.upper()


class Parts:
    """The stored tensors of one matrix."""

    def __init__(self, stored: Safetensors, base: str, config: Mapping[str, Any]) -> None:
        self.stored, self.base, self.config = stored, base, config
        self.used: list[str] = []

    def has(self, suffix: str) -> bool:
        return self.base + suffix in self.stored

    def shape(self, suffix: str) -> tuple[int, ...]:
        return self.stored.infos[self._name(suffix)].shape

    def array(self, suffix: str) -> Array:
        """Integers as they are, floats as f32."""
        name = self._name(suffix)
        info, data = self.stored.infos[name], self.stored.data(name)
        if info.dtype in ("F16", "BF16", "F32", "F64"):
            return read_floats(np.ascontiguousarray(data), FORMATS[info.dtype]).reshape(info.shape)
        kinds = {"I32": "<i4", "U8": "u1", "I8": "i1", "I64": "<i8", "F8_E4M3": "u1"}
        if info.dtype not in kinds:
            raise FileError(f"tensor {short(name)} is {info.dtype}, which this method of quantization does not have")
        return np.ascontiguousarray(data).view(kinds[info.dtype]).reshape(info.shape)

    def dtype(self, suffix: str) -> str:
        return self.stored.infos[self._name(suffix)].dtype

    def weight(self, fmt: str, shape: tuple[int, ...], make: Callable[[], Bytes]) -> Weight:
        return Weight(f"{self.base}.weight", get(fmt), shape, make, tuple(self.used))

    def _name(self, suffix: str) -> str:
        name = self.base + suffix
        if name not in self.stored.infos:
            raise FileError(f"the quantized matrix {short(self.base)} has no tensor {short(name)}")
        if name not in self.used:
            self.used.append(name)
        return name


class Prequantized(Mapping[str, QuantTensor]):
    """The tensors of a quantized checkpoint, as if its matrices were single tensors.

    Attributes:
        infos: Name, dtype and shape of each; those of matrices are `Weight`.
    """

    def __init__(self, stored: Safetensors, config: Mapping[str, Any]) -> None:
        self._stored = stored
        marker, read, others = METHODS[method_of(config)]
        bases = [name.removesuffix(marker) for name in stored if name.endswith(marker) and _is_matrix(stored, name)]
        self._weights = {f"{base}.weight": read(Parts(stored, base, config)) for base in bases}
        hidden = {base + suffix for base in bases for suffix in (marker, *others)}
        self._hidden_ends = (".input_scale", ".k_scale", ".v_scale", ".weight_shape")
        plain = {name: info for name, info in stored.infos.items() if name not in hidden and not self._is_hidden(name)}
        self.infos: Mapping[str, Any] = plain | self._weights
        self.file_bytes, self.paths = stored.file_bytes, stored.paths

    def _is_hidden(self, name: str) -> bool:
        return name.endswith(self._hidden_ends) or ".weight.quant_state." in name

    @property
    def formats(self) -> list[Format]:
        """Formats of the quantized matrices."""
        return list({weight.format.name: weight.format for weight in self._weights.values()}.values())

    @property
    def maps(self) -> WeakSet[FileMap]:
        """The memory maps that are in use."""
        return self._stored.maps

    def data(self, name: str) -> Bytes:
        """The bytes of a tensor: made for quantized matrices, of the file for others."""
        if name in self._weights:
            weight = self._weights[name]
            try:
                return np.ascontiguousarray(weight.make()).view(np.uint8).reshape(-1)
            except FewbitError:
                raise
            except (ValueError, IndexError, KeyError, TypeError) as error:
                raise FileError(f"{self.paths[0]}: the parts of {short(name)} do not fit each other: {error}") from None
        return self._stored.data(name)

    def forget(self, name: str) -> None:
        """Release the memory of a tensor. If it is used again, it is read from the file again."""
        for part in self._weights[name].parts if name in self._weights else (name,):
            self._stored.forget(part)

    def close(self) -> None:
        """Close the files."""
        self._stored.close()

    def __getitem__(self, name: str) -> QuantTensor:
        if name in self._weights:
            weight = self._weights[name]
            return QuantTensor.from_bytes(self.data(name), weight.shape, weight.format)
        return self._stored[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)


def open_prequantized(stored: Safetensors, config: Mapping[str, Any]) -> Prequantized:
    """The tensors of a quantized checkpoint; `config` is quantization_config of config.json."""
    try:
        return Prequantized(stored, config)
    except FewbitError as error:
        raise type(error)(f"{stored.paths[0]}: {error}") from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{stored.paths[0]}: quantization_config does not fit the tensors: {error!r}") from None


def method_of(config: Mapping[str, Any]) -> str:
    """The name of a method in `METHODS`."""
    name = config.get("quant_method")
    if name == "compressed-tensors":
        name = f"compressed-tensors {config.get('format')}"
    if name == "bitsandbytes":
        name += " 8 bits" if config.get("load_in_8bit") or config.get("_load_in_8bit") else ""
    if name not in METHODS:
        raise FileError(
            f"the weights are quantized by {short(name)}, which is not read; there are: {', '.join(METHODS)}. "
            "Look for a version in bf16 or f16, or for a GGUF file"
        )
    return str(name)


def _is_matrix(stored: Safetensors, name: str) -> bool:
    """Whether a tensor that is called as quantized ones are is one: bf16 matrices lie beside 8-bit ones."""
    return name.rpartition(".")[2] != "weight" or stored.infos[name].dtype in ("F8_E4M3", "U8", "I8")


def nibbles(words: Array) -> Array:
    """Eight numbers of 4 bits from each word of 32, the lowest bits first: (rows, n) to (rows, 8 n).

    >>> nibbles(np.array([[0x76543210]], np.int32)).tolist()
    [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    data = np.ascontiguousarray(words, "<i4").view(np.uint8).reshape(len(words), -1)
    return np.stack([data & 15, data >> 4], -1).reshape(len(words), -1)


def _awq(parts: Parts) -> Weight:
    """qweight (k, n/8), qzeros (groups, n/8), scales (groups, n): value = scale * (code - zero)."""
    _need_bits(parts, 4)
    if str(parts.config.get("version", "gemm")).lower() != "gemm":
        raise FileError(f"AWQ's packing {short(parts.config['version'])} is not read; gemm is")
    k, n = parts.shape(".qweight")[0], parts.shape(".scales")[1]

    def ordered(words: Array) -> Array:
        return nibbles(words).reshape(len(words), -1, 8)[:, :, AWQ_ORDER].reshape(len(words), -1)

    def read() -> tuple[Ints, Floats, Ints | None]:
        zeros = ordered(parts.array(".qzeros")).T if parts.has(".qzeros") else None
        codes = ordered(parts.array(".qweight")).T.astype(np.int32) - 8
        return codes, parts.array(".scales").T, None if zeros is None else zeros.astype(np.int32) - 8

    return _int4(parts, (n, k), parts.shape(".scales")[0], ".scales", read, parts.has(".qzeros"))


def _gptq(parts: Parts) -> Weight:
    """qweight (k/8, n), qzeros (groups, n/8), scales (groups, n), and the group of each column where they are mixed."""
    _need_bits(parts, 4)
    (words, n), groups = parts.shape(".qweight"), parts.shape(".scales")[0]
    k, group = 8 * words, -(-8 * words // groups)
    order = parts.array(".g_idx") if parts.has(".g_idx") else np.arange(k) // group
    less = 0 if parts.config.get("checkpoint_format") == "gptq_v2" else 1  # the older form stores zero - 1

    def read() -> tuple[Ints, Floats, Ints | None]:
        zeros = nibbles(parts.array(".qzeros")).T.astype(np.int32) + less - 8
        codes = nibbles(parts.array(".qweight").T).astype(np.int32) - 8
        return codes, parts.array(".scales").T, zeros

    if np.array_equal(order, np.arange(k) // group):
        return _int4(parts, (n, k), groups, ".scales", read, True)

    def mixed() -> Bytes:
        codes, scales, zeros = read()
        assert zeros is not None
        return write_floats((codes - zeros[:, order]).astype(np.float32) * scales[:, order], _kind(parts, ".scales"))

    return parts.weight(_kind(parts, ".scales"), (n, k), mixed)


def _pack_quantized(parts: Parts) -> Weight:
    """weight_packed (n, k/8), weight_scale (n, groups), weight_zero_point (n/8, groups)."""
    weights = _weights_config(parts.config)
    _need_bits(parts, 4, weights.get("num_bits"))
    n, groups = parts.shape(".weight_scale")
    k = 8 * parts.shape(".weight_packed")[1]
    if parts.has(".weight_shape"):
        n, k = (int(size) for size in parts.array(".weight_shape"))
    has_zeros = parts.has(".weight_zero_point")

    def read() -> tuple[Ints, Floats, Ints | None]:
        codes = nibbles(parts.array(".weight_packed"))[:, :k].astype(np.int32) - 8
        zeros = None
        if has_zeros:
            zeros = nibbles(parts.array(".weight_zero_point").T).T[:n].astype(np.int32) - 8
        return codes, parts.array(".weight_scale"), zeros

    if not parts.has(".weight_g_idx"):
        return _int4(parts, (n, k), groups, ".weight_scale", read, has_zeros)
    order = parts.array(".weight_g_idx")

    def mixed() -> Bytes:
        codes, scales, zeros = read()
        centered = codes if zeros is None else codes - zeros[:, order]
        return write_floats(centered.astype(np.float32) * scales[:, order], _kind(parts, ".weight_scale"))

    return parts.weight(_kind(parts, ".weight_scale"), (n, k), mixed)


def _int4(
    parts: Parts, shape: tuple[int, int], groups: int, scales: str, read: Callable[[], Any], has_zeros: bool
) -> Weight:
    """Codes of -8 to 7 with a scale for each group: `int4_group` where its groups fit, else floats."""
    n, k = shape
    size = -(-k // groups)
    group = next((one for one in GROUPS if size % one == 0), 0)
    scale_kind = "f16" if parts.dtype(scales) == "F16" else "f32"
    if not group:
        kind = _kind(parts, scales)

        def decoded() -> Bytes:
            codes, factors, zeros = read()
            centered = codes if zeros is None else codes - np.repeat(zeros, size, axis=1)[:, :k]
            return write_floats(centered.astype(np.float32) * np.repeat(factors, size, axis=1)[:, :k], kind)

        return parts.weight(kind, shape, decoded)
    fmt = get(f"int4_group:group={group},zero={str(has_zeros).lower()},scale={scale_kind}")

    def packed() -> Bytes:
        codes, factors, zeros = read()
        factors = np.ascontiguousarray(np.repeat(factors, size // group, axis=1), np.float32)
        zeros = None if zeros is None else np.repeat(zeros, size // group, axis=1)
        return pack_rows(fmt, Found(codes, factors, None, None, zeros), n, k)

    return parts.weight(fmt.name, shape, packed)


def _fp8(parts: Parts) -> Weight:
    """8-bit floats with a scale for all, for each row, or for each block of 128 x 128; they become bf16."""
    n, k = parts.shape(".weight")
    suffix = ".weight_scale_inv" if parts.has(".weight_scale_inv") else ".weight_scale"
    if parts.dtype(".weight") != "F8_E4M3":
        raise FileError(f"8-bit weights are read as F8_E4M3, {short(parts.base)} is {parts.dtype('.weight')}")
    parts.shape(suffix)
    block = parts.config.get("weight_block_size") or (128, 128)

    def make() -> Bytes:
        scale = parts.array(suffix)
        if scale.ndim == 2 and scale.shape[1] > 1:
            scale = np.repeat(np.repeat(scale, block[0], axis=0)[:n], block[1], axis=1)[:, :k]
        elif scale.size == n:
            scale = scale.reshape(n, 1)
        return write_floats(read_floats(parts.array(".weight"), "f8_e4m3") * scale, "bf16")

    return parts.weight("bf16", (n, k), make)


def _int8_rows(scales: str, unit: float = 1.0) -> Callable[[Parts], Weight]:
    """Bytes with a scale for each row."""

    def weight(parts: Parts) -> Weight:
        n, k = parts.shape(".weight")
        parts.shape(scales)

        def make() -> Bytes:
            factors = np.broadcast_to(parts.array(scales).reshape(-1, 1).astype(np.float32) * np.float32(unit), (n, 1))
            return pack_rows(get("int8"), Found(parts.array(".weight").astype(np.int32), np.array(factors)), n, k)

        return parts.weight("int8", (n, k), make)

    return weight


def _bitsandbytes(parts: Parts) -> Weight:
    """Codes of 4 bits into 16 floats, and a maximum for each block, itself quantized or not; floats here."""
    state_name = next((f".weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")
                       if parts.has(f".weight.quant_state.bitsandbytes__{kind}")), ".weight.quant_state")  # fmt: skip
    state = json.loads(parts.array(state_name).tobytes())
    n, k = state["shape"]
    kind = {"float16": "f16", "float32": "f32"}.get(state.get("dtype"), "bf16")

    def make() -> Bytes:
        data = parts.array(".weight").reshape(-1)
        codes = np.stack([data >> 4, data & 15], -1).reshape(-1)[: n * k]
        maxima = parts.array(".weight.absmax").reshape(-1)
        if maxima.dtype == np.uint8:
            size = int(state["nested_blocksize"])
            levels = parts.array(".weight.nested_quant_map")[maxima]
            nested = np.repeat(parts.array(".weight.nested_absmax").reshape(-1), size)[: len(levels)]
            maxima = levels * nested + np.float32(state.get("nested_offset", 0))
        each = np.repeat(maxima.astype(np.float32), int(state["blocksize"]))[: n * k]
        values = parts.array(".weight.quant_map")[codes].astype(np.float32) * each
        return write_floats(values.reshape(n, k), kind)

    return parts.weight(kind, (n, k), make)


def _kind(parts: Parts, scales: str) -> str:
    """The floats that a matrix is decoded to: those of its scales."""
    return {"F16": "f16", "F32": "f32"}.get(parts.dtype(scales), "bf16")


def _need_bits(parts: Parts, bits: int, given: Any = None) -> None:
    found = parts.config.get("bits", parts.config.get("w_bit", bits)) if given is None else given
    if found != bits:
        raise FileError(f"weights of {short(found)} bits are not read, those of {bits} are")


def _weights_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    groups = config.get("config_groups") or {}
    found = [group.get("weights") or {} for group in groups.values()]
    if len({json.dumps(one, sort_keys=True) for one in found}) > 1:
        raise FileError(f"its groups of matrices are quantized in several ways: {first_names(list(groups))}")
    return found[0] if found else {}


# The tensor that each quantized matrix has, how a matrix is made, and the names of its other tensors.
METHODS: Mapping[str, tuple[str, Callable[[Parts], Weight], tuple[str, ...]]] = {
    "awq": (".qweight", _awq, (".qzeros", ".scales")),
    "gptq": (".qweight", _gptq, (".qzeros", ".scales", ".g_idx")),
    "compressed-tensors pack-quantized": (
        ".weight_packed", _pack_quantized, (".weight_scale", ".weight_zero_point", ".weight_g_idx", ".weight_shape")),
    "compressed-tensors float-quantized": (".weight", _fp8, (".weight_scale",)),
    "compressed-tensors int-quantized": (".weight", _int8_rows(".weight_scale"), (".weight_scale",)),
    "fp8": (".weight", _fp8, (".weight_scale", ".weight_scale_inv")),
    "bitsandbytes": (
        ".weight", _bitsandbytes,
        (".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map")),
    "bitsandbytes 8 bits": (".weight", _int8_rows(".SCB", INT8_UNIT), (".SCB", ".weight_format")),
}  # fmt: skip
