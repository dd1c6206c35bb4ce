"""`fb.quantize_model`: formats by patterns, importance, error feedback, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.errors import DataError, DtypeError, FormatError, PathError, ShapeError
from fewbit.formats.spec import Grid
from fewbit.quantizing.expected import expected_squares
from fewbit.quantizing.feedback import encode_with_feedback, read_feedback
from fewbit.quantizing.mixes import MIXES, ModelSizes, choose, writable_formats
from fewbit.quantizing.pieces import magnitude_weights
from fewbit.quantizing.plan import plan_tensors

from ..models.random_llama import llama

ZOO = Path(__file__).parents[1] / "zoo"
QUERY = "blk.0.attn_q.weight"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "source.gguf"
    metadata, tensors = llama(hidden=256, feed_forward=512, layers=3, format="f16")
    fb.write_gguf(path, metadata | {"general.name": "a llama", "llama.odd": np.uint64(7)}, tensors)
    return path


def formats(made: fb.QuantizedModel) -> dict[str, str]:
    return {item.name: item.format.name for item in made.tensors}


def test_a_mix(source: Path, tmp_path: Path) -> None:
    made = fb.quantize_model(source, tmp_path / "out.gguf", "q4_k_m")
    file, given = fb.read_gguf(tmp_path / "out.gguf"), fb.read_gguf(source)
    assert (made.path, made.format, made.resumed) == (tmp_path / "out.gguf", "q4_k_m", 0)
    assert made.nbytes == sum(tensor.nbytes for tensor in file.tensors.values())
    assert formats(made) == {name: tensor.format.name for name, tensor in file.tensors.items()}
    values = given.tensors[QUERY].dequantize()
    assert file.tensors[QUERY] == fb.quantize(values, "q4_k", magnitude_weights(values))
    added = {"general.file_type": np.uint32(15), "general.quantization_version": np.uint32(2)}
    assert dict(file.typed_metadata) == dict(given.typed_metadata) | added
    assert not list(tmp_path.glob("*.partial*"))


def test_a_checkpoint_folder(tmp_path: Path) -> None:
    fb.quantize_model(ZOO / "llama" / "hf", tmp_path / "out.gguf", "q8_0")
    with fb.LLM(ZOO / "llama" / "hf", format="q8_0", keep=False) as llm:
        expected = llm.generate("the ring", max_tokens=8, temperature=0).tokens
    with fb.LLM(tmp_path / "out.gguf") as llm:
        assert llm.generate("the ring", max_tokens=8, temperature=0).tokens == expected


def test_patterns(source: Path, tmp_path: Path) -> None:
    patterns = {r"blk\.0\.ffn_down": "q8_0", "ffn_down": "Q6_K", "token_embd": "f16"}
    found = formats(fb.quantize_model(source, tmp_path / "out.gguf", "q4_0", tensors=patterns))
    assert [found[f"blk.{i}.ffn_down.weight"] for i in range(3)] == ["q8_0", "q6_k", "q6_k"]
    assert (found["token_embd.weight"], found[QUERY], found["output.weight"]) == ("f16", "q4_0", "q6_k")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [({"ffn_donw": "q4_0"}, "no matrix has a name with 'ffn_donw'"), ({"ffn": "q9"}, "'ffn' asks for the format 'q9'"),
     ({"(": "q4_0"}, r"'\(' is not a regular expression"), ({"attn_norm": "q8_0"}, "no matrix has a name with")],
)  # fmt: skip
def test_wrong_patterns(source: Path, tmp_path: Path, tensors: dict[str, str], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        fb.quantize_model(source, tmp_path / "out.gguf", tensors=tensors)
    assert not list(tmp_path.iterdir())


def test_keep_and_pure(source: Path, tmp_path: Path) -> None:
    kept = fb.quantize_model(source, tmp_path / "kept.gguf", "keep", tensors={"attn_v": "q8_0"})
    assert formats(kept) == {item.name: "q8_0" if "attn_v" in item.name else item.source.name for item in kept.tensors}
    pure = fb.quantize_model(source, tmp_path / "pure.gguf", "q4_k_m", pure=True)
    assert {item.format.name for item in pure.tensors if item.is_matrix} == {"q4_k"}


def test_a_dry_run_writes_nothing(source: Path, tmp_path: Path) -> None:
    made = fb.quantize_model(source, tmp_path / "out.gguf", "q2_k", dry_run=True)
    assert formats(made)["blk.1.ffn_down.weight"] == "q3_k"
    assert not list(tmp_path.iterdir())


def test_a_quantized_source_is_warned_of(source: Path, tmp_path: Path) -> None:
    fb.quantize_model(source, tmp_path / "a.gguf", "q8_0")
    with pytest.warns(UserWarning, match="quantized already, mostly to q8_0; their errors stay"):
        made = fb.quantize_model(tmp_path / "a.gguf", tmp_path / "b.gguf", "q4_0")
    assert formats(made)[QUERY] == "q4_0"
    copy = fb.quantize_model(tmp_path / "a.gguf", tmp_path / "c.gguf", "keep")
    files = [fb.read_gguf(tmp_path / name) for name in ("a.gguf", "c.gguf")]
    assert all(files[0].tensors[item.name] == files[1].tensors[item.name] for item in copy.tensors)


def test_places(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"precious")
    with pytest.raises(PathError, match="the file exists; only force replaces it"):
        fb.quantize_model(source, out, "q8_0")
    assert out.read_bytes() == b"precious"
    fb.quantize_model(source, out, "q8_0", force=True)
    assert fb.read_gguf(out).tensors[QUERY].format.name == "q8_0"
    with pytest.raises(PathError, match="this is a folder; name a file in it"):
        fb.quantize_model(source, tmp_path, "q8_0")
    with pytest.raises(PathError, match="there is no folder"):
        fb.quantize_model(source, tmp_path / "none" / "out.gguf", "q8_0")


def test_importance(source: Path, tmp_path: Path) -> None:
    weights = np.linspace(0.1, 4, 256, dtype=np.float32)
    fb.quantize_model(source, tmp_path / "out.gguf", "q4_k", importance={QUERY: weights})
    values = fb.read_gguf(source).tensors[QUERY].dequantize()
    assert fb.read_gguf(tmp_path / "out.gguf").tensors[QUERY] == fb.quantize(values, "q4_k", weights)
    with pytest.raises(ShapeError, match=r"importance of blk.0.attn_q.weight has the shape \(3,\)"):
        fb.quantize_model(source, tmp_path / "b.gguf", "q4_k", importance={QUERY: weights[:3]})
    with pytest.raises(DtypeError, match="importance must be a dictionary by tensor name or the path of a file"):
        fb.quantize_model(source, tmp_path / "b.gguf", "q4_k", importance=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("experts", [(), (3,)])
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.filterwarnings("ignore:q3_k")
def test_inputs_that_are_expected(experts: tuple[int, ...], is_fused: bool, tmp_path: Path) -> None:
    """Beside those of a feed-forward layer with normal inputs; and the search uses them, each expert its own."""
    rng, kind = np.random.default_rng(3), "_exps" if experts else ""
    gains = rng.lognormal(0, 0.3, 64).astype(np.float32)
    lengths = rng.lognormal(0, 1, (*experts, 256, 1)).astype(np.float32)
    gate, up = (rng.standard_normal((*experts, 256, 64), np.float32) * lengths / 8 for _ in range(2))
    down = rng.standard_normal((*experts, 32, 256), np.float32)
    parts = {"gate_up" if experts else "up": np.concatenate([gate, up], -2)} if is_fused else {"gate": gate, "up": up}
    tensors = {f"blk.0.ffn_{name}{kind}.weight": values for name, values in (parts | {"down": down}).items()}
    metadata = {"general.architecture": "llama", "llama.block_count": 1}
    fb.write_gguf(tmp_path / "in.gguf", metadata, tensors | {"blk.0.ffn_norm.weight": gains})
    fb.quantize_model(tmp_path / "in.gguf", tmp_path / "out.gguf", "q3_k", pure=True)
    inputs = rng.standard_normal((4000, 64), np.float32) * gains
    made = fb.read_gguf(tmp_path / "out.gguf").tensors[f"blk.0.ffn_down{kind}.weight"].dequantize()
    file = fb.read_gguf(tmp_path / "in.gguf")
    (plan,) = (item for item in plan_tensors(file, None).values() if "ffn_down" in item.name)
    expected = expected_squares(file, plan)
    assert expected is not None
    assert expected.shape == (3 if experts else 1, 256)
    for number in range(len(expected)):
        at = (number,) if experts else ()
        gates = inputs @ gate[at].T
        inner = gates / (1 + np.exp(-np.maximum(gates, -80))) * (inputs @ up[at].T)
        measured = np.square(inner).mean(axis=0)
        apart = abs(np.log(expected[number] / measured * measured.mean()))  # gate and up are not quite independent
        assert np.median(apart) < 0.3
        assert apart.max() < 1.5 < np.ptp(np.log(measured)) / 4
        plain = fb.quantize(down[at], "q3_k", magnitude_weights(down[at])).dequantize()
        error, plain_error = (np.square(inner @ (down[at] - one).T).mean() for one in (made[at], plain))
        assert error < 0.9 * plain_error


def test_layers_of_which_nothing_is_expected(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    metadata = {"general.architecture": "gpt2", "gpt2.block_count": 1}
    tensors = {f"blk.0.ffn_{name}.weight": rng.standard_normal(shape, np.float32) for name, shape in
               (("up", (256, 64)), ("down", (64, 256)))}  # fmt: skip
    fb.write_gguf(tmp_path / "in.gguf", metadata, tensors)
    file = fb.read_gguf(tmp_path / "in.gguf")
    assert [expected_squares(file, item) for item in plan_tensors(file, None).values()] == [None, None]


def test_importance_of_experts(tmp_path: Path) -> None:
    name, rng = "blk.0.ffn_up_exps.weight", np.random.default_rng(0)
    values = rng.standard_normal((3, 8, 256), np.float32)
    fb.write_gguf(tmp_path / "in.gguf", {"general.architecture": "llama", "llama.block_count": 1}, {name: values})
    weights = rng.random((3, 256), np.float32)
    weights[1] = 0  # an expert that no token chose
    fb.quantize_model(tmp_path / "in.gguf", tmp_path / "out.gguf", "iq4_nl", importance={name: weights})
    made = fb.read_gguf(tmp_path / "out.gguf").tensors[name].dequantize()
    for expert in range(3):
        expected = fb.quantize(
            values[expert], "iq4_nl", weights[expert] if expert != 1 else magnitude_weights(values[1])
        )
        assert np.array_equal(made[expert], expected)


def moments(k: int, seed: int = 0) -> Floats:
    """The sum of x x^T over inputs that resemble each other."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4 * k, k)) @ (rng.standard_normal((k, k)) * np.exp(-np.arange(k) / (k / 8)))
    return (x.T @ x).astype(np.float32)


def output_error(apart: Floats, hessian: Floats) -> float:
    return float(np.sum((apart.astype(np.float64) @ hessian) * apart))


@pytest.mark.parametrize("name", [name for name in writable_formats() if name not in ("f32", "f16", "bf16", "q1_0")])
def test_error_feedback_lowers_the_error_of_outputs(name: str) -> None:
    k, fmt = 512, fb.format(name)
    x = np.random.default_rng(1).standard_normal((8, k)).astype(np.float32)
    hessian = moments(k)
    data = encode_with_feedback(fmt, x, read_feedback(hessian))
    made = fb.QuantTensor.from_bytes(data.reshape(-1), x.shape, fmt).dequantize()
    plain = fb.quantize(x, fmt, hessian.diagonal().copy()).dequantize()
    bound = 0.97 if isinstance(fmt.codes, Grid) else 0.75  # a point is chosen for several columns at once
    assert output_error(x - made, hessian) < bound * output_error(x - plain, hessian)


def test_error_feedback_in_a_model(source: Path, tmp_path: Path) -> None:
    hessian = moments(256)
    fb.quantize_model(source, tmp_path / "out.gguf", "q3_k_s", error_feedback={QUERY: hessian})
    values = fb.read_gguf(source).tensors[QUERY].dequantize()
    made = fb.read_gguf(tmp_path / "out.gguf").tensors
    apart = values - made[QUERY].dequantize()
    assert output_error(apart, hessian) < 0.7 * output_error(values - fb.quantize(values, "q3_k").dequantize(), hessian)
    other = "blk.1.attn_q.weight"
    values = fb.read_gguf(source).tensors[other].dequantize()
    assert made[other] == fb.quantize(values, "q3_k", magnitude_weights(values))


def test_hessians_from_a_file(source: Path, tmp_path: Path) -> None:
    names = [QUERY, "blk.0.attn_k.weight"]
    metadata = {"general.type": "hessian", "hessian.names": names, "hessian.tensors": [QUERY, QUERY]}
    fb.write_gguf(tmp_path / "a.hessian.gguf", metadata, {QUERY: moments(256)})
    fb.quantize_model(source, tmp_path / "a.gguf", "q4_k", error_feedback=tmp_path / "a.hessian.gguf")
    fb.quantize_model(source, tmp_path / "b.gguf", "q4_k", error_feedback=dict.fromkeys(names, moments(256)))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    with pytest.raises(fb.FileError, match="no Hessians; `fewbit calibrate --hessian` writes them"):
        fb.quantize_model(source, tmp_path / "c.gguf", "q4_k", error_feedback=source)


@pytest.mark.parametrize(
    ("hessian", "error", "message"),
    [(np.eye(3), ShapeError, r"the Hessian of blk.0.attn_q.weight has the shape \(3, 3\)"),
     (np.ones((4, 3)), ShapeError, "must be square"), (-np.eye(256) + 2 * (np.arange(256) > 0), DataError, "positive")],
)  # fmt: skip
def test_wrong_hessians(source: Path, tmp_path: Path, hessian: Floats, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fb.quantize_model(source, tmp_path / "out.gguf", "q4_k", error_feedback={QUERY: hessian})
    assert not list(tmp_path.iterdir())


def chosen(mix: str, matrix: str, sizes: ModelSizes, layers: tuple[int, ...]) -> list[str]:
    return [choose(MIXES[mix], f"blk.{i}.{matrix}.weight", (8, 256), sizes).name for i in layers]


def test_mixes_by_layer_and_model() -> None:
    plain, grouped = ModelSizes(32), ModelSizes(32, heads_per_kv=8)
    eight = ModelSizes(32, heads_per_kv=4, experts=8)
    assert chosen("q3_k_m", "attn_v", plain, (0, 1, 2)) == ["q5_k", "q5_k", "q4_k"]
    assert chosen("q3_k_m", "ffn_down", plain, (0, 1, 2)) == ["q5_k", "q5_k", "q4_k"]
    assert chosen("q4_k_s", "attn_v", plain, (3, 4)) == ["q5_k", "q4_k"]
    assert chosen("q4_k_m", "attn_qkv", plain, (0, 4, 6, 31)) == ["q6_k", "q4_k", "q6_k", "q6_k"]
    assert chosen("q2_k", "attn_v", plain, (9,)) + chosen("q2_k", "attn_v", grouped, (9,)) == ["q3_k", "q4_k"]
    assert chosen("iq3_xs", "ffn_up", plain, (0, 4, 28)) == ["iq3_s", "iq3_xxs", "iq3_s"]
    assert chosen("q4_k_m", "attn_k", eight, (4,)) + chosen("q4_k_m", "attn_output", eight, (4,)) == ["q8_0", "q5_k"]
    assert chosen("mxfp4_moe", "ffn_up_exps", plain, (4,)) + chosen("mxfp4_moe", "ffn_up", plain, (4,)) == [
        "mxfp4", "q8_0",
    ]  # fmt: skip
    with_importance = ModelSizes(32, has_importance=True)
    assert [chosen("iq3_xxs", "ffn_down", sizes, (1, 9)) for sizes in (plain, with_importance)] == [
        ["q4_k", "q3_k"], ["iq3_xxs", "iq3_xxs"],
    ]  # fmt: skip
