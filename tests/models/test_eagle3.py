"""EAGLE-3 heads: what they guess, beside the definition in NumPy, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit import read_gguf, write_gguf
from fewbit.arrays import Floats
from fewbit.devices.batch import Row
from fewbit.errors import FileError, RequestError, ShapeError
from fewbit.load_options import LoadOptions
from fewbit.loading import load as load_with
from fewbit.models import load_model, open_eagle_head, open_model
from fewbit.ops.numpy import DecodedWeights, NumpyStep, run
from fewbit.ops.recorder import record
from fewbit.ops.sampling import SamplingParams

from ..engine.alone import run as run_engine
from ..engine.speculation.test_mtp import CTX, WARM, Model, check_schedule, make_engine, texts
from ..loading import load
from ..mtp_models import ZOO
from .random_llama import write_llama
from .test_lora import adapted_logits

HIDDEN, HEADS, KV_HEADS, DIM, ROWS, LAYERS, VOCAB, EPS = 64, 4, 2, 16, 96, 8, 61, 1e-5
GREEDY = SamplingParams(temperature=0)


def write_head(folder: Path, vocab: int, draft_vocab: int, hidden: int = 64, **config: Any) -> dict[str, Floats]:
    """A random head that knows some of the tokens; its tensors."""
    random = np.random.default_rng(3)

    def matrix(*shape: int) -> Floats:
        return np.float32(random.normal(size=shape) / shape[-1] ** 0.5)

    tensors: dict[str, Any] = {
        "fc": matrix(hidden, 3 * hidden), "lm_head": 4 * matrix(draft_vocab, hidden),
        "midlayer.self_attn.q_proj": matrix(HEADS * DIM, 2 * hidden),
        "midlayer.self_attn.k_proj": matrix(KV_HEADS * DIM, 2 * hidden),
        "midlayer.self_attn.v_proj": matrix(KV_HEADS * DIM, 2 * hidden),
        "midlayer.self_attn.o_proj": matrix(hidden, HEADS * DIM),
        "midlayer.mlp.gate_proj": matrix(ROWS, hidden), "midlayer.mlp.up_proj": matrix(ROWS, hidden),
        "midlayer.mlp.down_proj": matrix(hidden, ROWS),
    }  # fmt: skip
    norms = ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm")
    tensors |= {name: np.float32(random.uniform(0.5, 1.5, hidden)) for name in norms}
    stored = {f"{name}.weight": values for name, values in tensors.items()}
    known = np.sort(random.choice(vocab, draft_vocab, replace=False))
    stored["d2t"] = known - np.arange(draft_vocab)
    stored["t2d"] = np.isin(np.arange(vocab), known)
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", stored)
    values = {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": hidden, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": DIM, "intermediate_size": ROWS, "num_hidden_layers": 1,
        "rms_norm_eps": EPS, "rope_theta": 10000.0, "vocab_size": vocab, "draft_vocab_size": draft_vocab,
        "max_position_embeddings": 256,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values | config))
    return tensors | {"known": known}


def write_safetensors(path: Path, tensors: dict[str, Any]) -> None:
    names = {np.dtype(np.float32): "F32", np.dtype(np.int64): "I64", np.dtype(bool): "BOOL"}
    header, data = dict[str, Any](), b""
    for name, values in tensors.items():
        offsets = [len(data), len(data) + values.nbytes]
        header[name] = {"dtype": names[values.dtype], "shape": values.shape, "data_offsets": offsets}
        data += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_model(folder: Path) -> Path:
    return write_llama(
        folder / "model.gguf", hidden=HIDDEN, feed_forward=128, heads=4, layers=LAYERS, format="f32"
    )  # fmt: skip


# The definition


def norm(x: Floats, weight: Floats) -> Floats:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight)


def rotate(x: Floats) -> Floats:
    """(tokens, heads, dim): the halves of a head are pairs."""
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(DIM // 2) / (DIM // 2))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def layer(w: dict[str, Floats], given: Floats, embedded: Floats) -> Floats:
    """The residual stream after the head's layer."""
    both = np.concatenate([norm(embedded, w["midlayer.input_layernorm"]), norm(given, w["midlayer.hidden_norm"])], -1)
    q, k, v = ((both @ w[f"midlayer.self_attn.{x}_proj"].T).reshape(len(both), -1, DIM) for x in "qkv")
    q, k = rotate(q), rotate(k)
    out = np.empty(q.shape)
    for head in range(HEADS):
        scores = q[:, head] @ k[:, head // (HEADS // KV_HEADS)].T / DIM**0.5
        scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, head // (HEADS // KV_HEADS)]
    x = given + out.reshape(len(q), -1) @ w["midlayer.self_attn.o_proj"].T
    rows = norm(x, w["midlayer.post_attention_layernorm"])
    gate, up = (rows @ w[f"midlayer.mlp.{name}_proj"].T for name in ("gate", "up"))
    return np.asarray(x + (gate / (1 + np.exp(-gate)) * up) @ w["midlayer.mlp.down_proj"].T)


class Whole:
    """K and V of one text, all of it in one step."""

    def append(self, layer: int, sequences: Any, k: Floats, v: Floats) -> None:
        self.k, self.v = k, v

    def attend(self, layer: int, sequences: Any, q: Floats, params: Any) -> Floats:
        each = q.shape[1] // self.k.shape[1]
        k, v = (np.repeat(x, each, axis=1) for x in (self.k, self.v))
        scores = np.einsum("qhd,khd->hqk", q, k) * params.scale
        weights = np.exp(np.where(np.tri(len(q), dtype=bool), scores, -np.inf))
        return np.float32(np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v))


def tap(model: Any, number: int, tokens: list[int]) -> Floats:
    """What a layer of the model gets."""
    ids = np.array(tokens, np.int32)
    step = NumpyStep(ids, np.arange(len(ids), dtype=np.int32), ids[:0], Whole(), [0], weights=DecodedWeights())  # type: ignore[arg-type]
    return run(record(lambda ops: model.rows(ops, [number])[1][0]), step)


def expected_guesses(model: Any, w: dict[str, Floats], tokens: list[int], count: int) -> list[int]:
    table, known = DecodedWeights()(model.token_embd), tokens[:]
    given = np.zeros((1, HIDDEN))
    if len(tokens) > 1:
        taps = [tap(model, number, tokens[:-1]) for number in (2, LAYERS // 2, LAYERS - 3)]
        given = np.concatenate([given, np.concatenate(taps, -1) @ w["fc"].T])
    for _ in range(count):
        own = layer(w, given, table[known])
        given = np.concatenate([given, own[-1:]])
        logits = norm(own[-1:], w["norm"]) @ w["lm_head"].T
        known.append(int(w["known"][np.argmax(logits)]))
    return known[len(tokens) :]


def test_guesses_are_those_of_the_definition(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    file = open_model(path)
    model: Any = load_model(file).model
    head = write_head(tmp_path / "head", VOCAB, 40)
    loaded = load(file, kv="f32", activations="exact", ctx=CTX, draft=tmp_path / "head", threads=1)
    engine, drafter = make_engine(loaded)
    for prompt in (text[:length] for text in texts(model.config.vocab)[:2] for length in (1, 20, 40)):
        engine.add(engine.generation(prompt, GREEDY, max_tokens=5))
        run_engine(engine)
    assert all(draft for _, draft in drafter.guesses)
    wrong = sum(expected_guesses(model, head, before, len(draft)) != draft for before, draft in drafter.guesses)
    assert len(drafter.guesses) > 10
    assert wrong <= 1  # a tie


def test_the_text_is_the_same(tmp_path: Path) -> None:
    write_head(tmp_path / "head", VOCAB, 40)
    model = Model(write_model(tmp_path), head=tmp_path / "head")
    options = {"params": WARM, "max_tokens": 12, "seed": 0, "n": 1, "logprobs": None}
    work = [(text, 60, wait, options, None) for text, wait in ((0, 0), (1, 0), (2, 2), (0, 4))]
    check_schedule(model, work, (48, 160), 3)
    assert model.accepted + model.wrong > 20
    assert model.hits


def test_adapters_change_the_model_beside_a_head(tmp_path: Path) -> None:
    vocab, hidden = open_model(ZOO / "llama/model.gguf").tensors["token_embd.weight"].shape
    write_head(tmp_path / "head", vocab, 40, hidden, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]})
    path = with_layers(tmp_path, 3)
    plain, beside = (load(open_model(path), kv="f32", exact=True, draft=one) for one in (None, tmp_path / "head"))
    both = [adapted_logits(loaded, ZOO / "llama/adapter", [5, 6, 7, 8]) for loaded in (plain, beside)]
    np.testing.assert_allclose(*both, atol=1e-5)
    unchanged = beside.forward([Row(beside.cache.new(), [5, 6, 7, 8], 4)])
    assert np.abs(both[1] - unchanged).max() > 0.01


def with_layers(folder: Path, layers: int) -> Path:
    """The zoo's llama with its last layer several times."""
    file = read_gguf(ZOO / "llama/model.gguf")
    tensors, last = dict(file.tensors), file.metadata["llama.block_count"] - 1
    for name, tensor in file.tensors.items():
        if name.startswith(f"blk.{last}."):
            tensors |= {name.replace(f"blk.{last}.", f"blk.{layer}."): tensor for layer in range(last, layers)}
    write_gguf(folder / "deep.gguf", dict(file.metadata) | {"llama.block_count": layers}, tensors)
    return folder / "deep.gguf"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": 32}, "for rows of 32 values"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}}, "the model has 8 layers"),
        ({"draft_vocab_size": 39}, "must be 39 x 64"),
    ],
)
def test_heads_that_do_not_fit(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    path = write_model(tmp_path)
    write_head(tmp_path / "head", VOCAB, 40, **config)
    with pytest.raises((FileError, ShapeError), match=message):
        load(open_model(path), draft=tmp_path / "head")


def test_other_folders_are_no_heads(tmp_path: Path) -> None:
    assert open_eagle_head(tmp_path) is None
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    assert open_eagle_head(tmp_path) is None
    path = write_model(tmp_path)
    write_head(tmp_path / "head", VOCAB, 40)
    with pytest.raises(RequestError, match="an EAGLE head needs one device"):
        load_with(open_model(path), LoadOptions(device="cpu,cpu", draft=tmp_path / "head"))
