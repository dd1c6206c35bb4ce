"""Checkpoints that libraries quantized: made here by the published definitions, and decoded to exactly their values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fewbit as fb
from fewbit.errors import FileError
from fewbit.files.safetensors import read_safetensors
from fewbit.formats.decode import f8_e4m3
from fewbit.models import open_model

from ..files.safetensors_bytes import entry, file_of

ZOO = Path(__file__).parents[1] / "zoo"
Array = npt.NDArray[Any]
NAMES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "uint8": "U8", "int8": "I8", "int32": "I32",
         "int64": "I64"}  # fmt: skip


def safetensors(tensors: dict[str, Array], dtypes: dict[str, str]) -> bytes:
    header, data = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        dtype = dtypes.get(name, NAMES[array.dtype.name])
        header[name] = entry(dtype, list(array.shape), len(data), len(data) + len(raw))
        data += raw
    text = json.dumps(header)
    return file_of((text + " " * (-len(text) % 8)).encode(), data)


def words(codes: Array, order: tuple[int, ...] = tuple(range(8))) -> Array:
    """Codes of 4 bits, eight columns to a word; nibble i has column order[i]."""
    eight = codes.reshape(len(codes), -1, 8).astype(np.uint32)
    joined = sum(eight[:, :, column] << np.uint32(4 * i) for i, column in enumerate(order))
    return np.asarray(joined, np.uint32).view(np.int32)


class Maker:
    """Matrices in the form of a method: parts by suffix, and the weights that they stand for."""

    def __init__(self, method: str, group: int = 32) -> None:
        self.rng, self.method, self.group = np.random.default_rng(0), method, group
        self.dtypes: dict[str, str] = {}

    def make(self, base: str, n: int, k: int) -> tuple[dict[str, Array], Array]:
        parts, weights = getattr(self, self.method)(n, k)
        for suffix, array in parts.items():
            if array.dtype == np.uint8 and suffix == ".weight" and self.method.startswith("fp8"):
                self.dtypes[base + suffix] = "F8_E4M3"
        return {base + suffix: array for suffix, array in parts.items()}, weights

    def codes(self, n: int, k: int, groups: int) -> tuple[Array, Array, Array]:
        scales = (self.rng.random((n, groups)) * 0.01 + 0.001).astype(np.float16)
        return self.rng.integers(0, 16, (n, k)), self.rng.integers(0, 16, (n, groups)), scales

    def spread(self, values: Array, k: int) -> Array:
        return np.repeat(values, k // values.shape[1], axis=1).astype(np.float32)

    def awq(self, n: int, k: int) -> tuple[dict[str, Array], Array]:
        codes, zeros, scales = self.codes(n, k, k // self.group)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        parts = {".qweight": words(codes.T, order), ".qzeros": words(zeros.T, order), ".scales": scales.T}
        return parts, (codes - self.spread(zeros, k)) * self.spread(scales, k)

    def gptq(self, n: int, k: int, mixed: bool = False, less: int = 1) -> tuple[dict[str, Array], Array]:
        codes, zeros, scales = self.codes(n, k, k // self.group)
        zeros = np.maximum(zeros, less)
        places = np.arange(k) // self.group
        if mixed:
            places = self.rng.permutation(places)
        parts = {
            ".qweight": words(codes).T, ".qzeros": words((zeros - less).T), ".scales": scales.T,
            ".g_idx": places.astype(np.int32),
        }  # fmt: skip
        return parts, (codes - zeros[:, places]).astype(np.float32) * scales[:, places].astype(np.float32)

    def gptq_v2(self, n: int, k: int) -> tuple[dict[str, Array], Array]:
        return self.gptq(n, k, less=0)

    def gptq_mixed(self, n: int, k: int) -> tuple[dict[str, Array], Array]:
        parts, weights = self.gptq(n, k, mixed=True)
        return parts, weights.astype(np.float16).astype(np.float32)

    def pack_quantized(self, n: int, k: int) -> tuple[dict[str, Array], Array]:
        codes, _, scales = self.codes(n, k, k // self.group)
        parts = {".weight_packed": words(codes), ".weight_scale": scales, ".weight_shape": np.array([n, k])}
        return parts, (codes - 8) * self.spread(scales, k)

    def pack_quantized_zeros(self, n: int, k: int) -> tuple[dict[str, Array], Array]:
        codes, zeros, scales = self.codes(n, k, k // self.group)
        parts = {
            ".weight_packed": words(codes), ".weight_scale": scales, ".weight_shape": np.array([n, k]),
            ".weight_zero_point": words(zeros.T).T,
        }  # fmt: skip
        return parts, (codes - self.spread(zeros, k)) * self.spread(scales, k)

    def fp8_codes(self, n: int, k: int) -> tuple[Array, Array]:
        codes = self.rng.integers(0, 0x78, (n, k)).astype(np.uint8) | (self.rng.integers(0, 2, (n, k)) << 7).astype(
            np.uint8
        )
        return codes, f8_e4m3(codes)

    def fp8(self, n: int, k: int) -> tuple[dict[str, Array], Array]:
        codes, values = self.fp8_codes(n, k)
        scales = (2.0 ** self.rng.integers(-12, -8, (-(-n // 16), -(-k // 16)))).astype(np.float32)
        blocks = np.repeat(np.repeat(scales, 16, axis=0)[:n], 16, axis=1)[:, :k]
        return {".weight": codes, ".weight_scale_inv": scales}, values * blocks

    def fp8_tensor(self, n: int, k: int) -> tuple[dict[str, Array], Array]:
        codes, values = self.fp8_codes(n, k)
        return {".weight": codes, ".weight_scale": np.array([0.0078125], np.float32)}, values * np.float32(0.0078125)

    def fp8_rows(self, n: int, k: int) -> tuple[dict[str, Array], Array]:
        codes, values = self.fp8_codes(n, k)
        scales = (2.0 ** self.rng.integers(-12, -8, (n, 1))).astype(np.float32)
        parts = {".weight": codes, ".weight_scale": scales, ".input_scale": np.ones(1, np.float32)}
        return parts, values * scales

    def int8(self, n: int, k: int) -> tuple[dict[str, Array], Array]:
        codes = self.rng.integers(-128, 128, (n, k)).astype(np.int8)
        scales = self.rng.random((n, 1)).astype(np.float32) / 1000
        return {".weight": codes, ".weight_scale": scales}, codes * scales

    def bitsandbytes(self, n: int, k: int, nested: bool = False) -> tuple[dict[str, Array], Array]:
        levels = np.sort(self.rng.standard_normal(16)).astype(np.float32)
        codes, count = self.rng.integers(0, 16, n * k), n * k // 64
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [n, k]}
        parts = {
            ".weight": (codes[0::2] << 4 | codes[1::2]).astype(np.uint8).reshape(-1, 1),
            ".weight.quant_map": levels,
        }
        maxima = self.rng.random(count).astype(np.float32)
        parts[".weight.absmax"] = maxima
        if nested:
            state |= {"nested_blocksize": 256, "nested_offset": 0.25, "nested_dtype": "float32"}
            table = np.linspace(-1, 1, 256, dtype=np.float32)
            small, outer = self.rng.integers(0, 256, count).astype(np.uint8), self.rng.random(-(-count // 256))
            outer = outer.astype(np.float32)
            parts |= {".weight.absmax": small, ".weight.nested_quant_map": table, ".weight.nested_absmax": outer}
            maxima = table[small] * np.repeat(outer, 256)[:count] + np.float32(0.25)
        text = np.frombuffer(json.dumps(state).encode(), np.uint8)
        parts[".weight.quant_state.bitsandbytes__nf4"] = text
        return parts, (levels[codes] * np.repeat(maxima, 64)).reshape(n, k)

    def bitsandbytes_nested(self, n: int, k: int) -> tuple[dict[str, Array], Array]:
        return self.bitsandbytes(n, k, nested=True)


CT = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
CONFIGS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False},
    "gptq_v2": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
    "gptq_mixed": {"quant_method": "gptq", "bits": 4, "desc_act": True},
    "pack_quantized": {**CT, "format": "pack-quantized"},
    "pack_quantized_zeros": {**CT, "format": "pack-quantized"},
    "fp8": {"quant_method": "fp8", "weight_block_size": [16, 16]},
    "fp8_tensor": {"quant_method": "fp8"},
    "fp8_rows": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    "int8": {"quant_method": "compressed-tensors", "format": "int-quantized"},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "bitsandbytes_nested": {"quant_method": "bitsandbytes", "load_in_4bit": True},
}
FORMATS = {
    "awq": "int4_group:zero=true,scale=f16", "gptq": "int4_group:zero=true,scale=f16",
    "gptq_v2": "int4_group:zero=true,scale=f16", "gptq_mixed": "f16", "pack_quantized": "int4_group:scale=f16",
    "pack_quantized_zeros": "int4_group:zero=true,scale=f16", "fp8": "bf16", "fp8_tensor": "bf16", "fp8_rows": "bf16",
    "int8": "int8", "bitsandbytes": "f32", "bitsandbytes_nested": "f32",
}  # fmt: skip


def write_pair(folder: Path, method: str, source: Path = ZOO / "llama" / "hf") -> tuple[Path, Path]:
    """A quantized checkpoint, and one in f32 with the same weights."""
    maker, packed, plain = Maker(method, 16 if method == "gptq_mixed" else 32), {}, {}
    for name, tensor in read_safetensors(source).items():
        base = name.removesuffix(".weight")
        if base.endswith("_proj"):
            parts, weights = maker.make(base, *tensor.shape)
            packed |= parts
            plain[name] = weights.astype(np.float32)
        else:
            packed[name] = plain[name] = tensor.dequantize()
    folders = folder / "packed", folder / "plain"
    for one, tensors in zip(folders, (packed, plain), strict=True):
        shutil.copytree(source, one)
        (one / "model.safetensors").write_bytes(safetensors(tensors, maker.dtypes if tensors is packed else {}))
    config = json.loads((source / "config.json").read_text())
    (folders[0] / "config.json").write_text(json.dumps(config | {"quantization_config": CONFIGS[method]}))
    return folders


@pytest.mark.parametrize("method", CONFIGS)
def test_decoded_weights(method: str, tmp_path: Path) -> None:
    packed, plain = (open_model(folder) for folder in write_pair(tmp_path, method))
    assert sorted(packed.tensors) == sorted(plain.tensors)
    for name in plain.tensors:
        assert packed.infos[name].shape == plain.infos[name].shape
        assert np.array_equal(packed.tensors[name].dequantize(), plain.tensors[name].dequantize()), name
        assert packed.tensors[name].format == packed.infos[name].format
    formats = {packed.infos[name].format.name for name in plain.tensors if "blk.0.ffn" in name and "norm" not in name}
    assert formats == {FORMATS[method]}
    assert packed.infos["blk.0.attn_q.weight"].format.name == FORMATS[method]  # whose rows are moved


@pytest.mark.parametrize("method", ["awq", "pack_quantized", "fp8", "bitsandbytes"])
def test_such_a_folder_runs(method: str, tmp_path: Path) -> None:
    tokens = []
    for folder in write_pair(tmp_path, method):
        with fb.LLM(folder, activations="exact") as llm:
            tokens.append(llm.generate("the ring", max_tokens=8, temperature=0).tokens)
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(("method", "name"), [("pack_quantized", "q4_0"), ("awq", "q4_1"), ("int8", "q8_0")])
def test_out_to_gguf(method: str, name: str, tmp_path: Path) -> None:
    packed, plain = write_pair(tmp_path, method)
    made = fb.quantize_model(packed, tmp_path / "out.gguf", "keep")
    file = fb.read_gguf(made.path)
    for tensor in file.tensors:
        expected, got = open_model(plain).tensors[tensor].dequantize(), file.tensors[tensor].dequantize()
        if method == "pack_quantized":
            assert np.array_equal(got, expected)
        else:  # scales and offsets are rounded to f16
            assert abs(got - expected).max() <= 2**-10 * abs(expected).max()
    assert file.tensors["blk.0.ffn_up.weight"].format.name == name


def test_other_formats_warn(tmp_path: Path) -> None:
    packed, _ = write_pair(tmp_path, "awq")
    with pytest.warns(UserWarning, match="quantized already") as caught:
        made = fb.quantize_model(packed, tmp_path / "out.gguf", "q8_0")
    assert len(caught) == 1
    assert {item.format.name for item in made.tensors if item.is_matrix} == {"q8_0"}


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [("awq", {"bits": 3}, "weights of 3 bits are not read, those of 4 are"),
     ("awq", {"version": "gemv"}, "AWQ's packing 'gemv' is not read"),
     ("pack_quantized", {"config_groups": {"a": {"weights": {"num_bits": 8}}}}, "weights of 8 bits are not read"),
     ("fp8", {"quant_method": "quip"}, "quantized by 'quip', which is not read; there are: awq, gptq"),
     ("awq", {"quant_method": 3}, "quantized by 3, which is not read")],
)  # fmt: skip
def test_what_is_not_read(method: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    packed, _ = write_pair(tmp_path, method)
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] |= changes
    (packed / "config.json").write_text(json.dumps(config))
    with pytest.raises(FileError, match=message):
        open_model(packed)
