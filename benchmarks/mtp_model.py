"""Trains a small GLM-4.5 with a layer that predicts a further token (MTP), and writes it as a transformers checkpoint.

python benchmarks/mtp_model.py FOLDER --steps 150
python benchmarks/mtp_model.py FOLDER --count 400
python benchmarks/mtp_model.py FOLDER --speed 400

It writes sentences of a made-up language, of which each is followed by one of two others. Two layers are trained, then
the MTP layer beside them to predict what they will say; layers that add nothing follow, so that a step takes as long as
that of a model of some size. The weights are about 32M. `--count` says how many of its guesses transformers itself
accepts in a text of so many tokens, and how many are accepted here; `--speed` what they give, in q8_0, in turns.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy, linear
from transformers.generation.candidate_generator import MTPCandidateGenerator
from transformers.modeling_layers import MtpModel

import fewbit as fb
from tests.zoo.vocab import write_bpe

TRAINED, LAYERS, SENTENCES, LENGTH, TOKENS = 2, 32, 24, 16, 256
SIZES: dict[str, Any] = {
    "vocab_size": 288, "hidden_size": 256, "intermediate_size": 1024, "moe_intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "n_routed_experts": 2, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "use_qk_norm": True, "max_position_embeddings": 2048, "num_nextn_predict_layers": 1,
    "bos_token_id": 281, "eos_token_id": 282, "pad_token_id": 283,
}  # fmt: skip


class Language:
    """Sentences of random tokens, and which two may follow each."""

    def __init__(self) -> None:
        random = Random(0)
        self.sentences = [[random.randrange(TOKENS) for _ in range(LENGTH)] for _ in range(SENTENCES)]
        self.following = [random.sample(range(SENTENCES), 2) for _ in range(SENTENCES)]

    def text(self, random: Random, count: int) -> list[int]:
        tokens, sentence = [], random.randrange(SENTENCES)
        while len(tokens) < count + LENGTH:
            tokens += self.sentences[sentence]
            sentence = self.following[sentence][random.random() < 0.2]
        start = random.randrange(LENGTH)
        return tokens[start : start + count]


def train(folder: Path, steps: int, batch: int, length: int) -> None:
    torch.manual_seed(0)
    config = transformers.Glm4MoeConfig(num_hidden_layers=TRAINED, first_k_dense_replace=LAYERS, **SIZES)
    config._attn_implementation = "sdpa"
    model = transformers.Glm4MoeForCausalLM(config)
    mtp = MtpModel(model, 1)
    language, random = Language(), Random(1)
    parameters = [*model.parameters(), *mtp.layers.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps, pct_start=0.15)
    for step in range(steps):
        tokens = torch.tensor([language.text(random, length) for _ in range(batch)])
        output = model(tokens, output_hidden_states=True)
        loss = cross_entropy(output.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        guessed = guess(mtp, tokens, output.hidden_states[-1].detach())
        own = output.logits[:, 1:-1].detach().softmax(-1)  # what the model itself says after the token
        further = -(own * guessed[:, :-1].log_softmax(-1)).sum(-1).mean()
        optimizer.zero_grad()
        (loss + further).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % 10 == 0 or step == steps - 1:
            right = (guessed[:, :-1].argmax(-1) == output.logits[:, 1:-1].argmax(-1)).float().mean()
            print(f"{step}: loss {loss:.3f}, of the MTP layer {further:.3f}, right {right:.3f}", flush=True)
    write(folder, model, mtp)


def guess(mtp: MtpModel, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Logits of the token after the next one: hidden rows with the tokens after them."""
    positions = torch.arange(1, tokens.shape[1])[None]
    rows = mtp.forward_layer(0, hidden[:, :-1], positions, None, input_ids=tokens[:, 1:])
    return linear(rows, mtp.shared_head.weight.detach())


@torch.no_grad()
def write(folder: Path, model: Any, mtp: MtpModel) -> None:
    """The checkpoint, with more layers, whose outputs are zero."""
    model.config.num_hidden_layers = TRAINED
    model.save_pretrained(folder)
    write_bpe(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.startswith(f"model.layers.{TRAINED - 1}.")]:
        for layer in range(TRAINED, LAYERS):
            is_last = name.endswith(("o_proj.weight", "down_proj.weight"))
            new = name.replace(f"layers.{TRAINED - 1}.", f"layers.{layer}.")
            tensors[new] = torch.zeros_like(tensors[name]) if is_last else tensors[name].clone()
    for name, tensor in mtp.layers[0].state_dict().items():
        begin, rest = f"model.layers.{LAYERS}.", name.removeprefix("mtp_block.")
        if rest in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
            for number, one in enumerate(tensor):
                parts = one.chunk(2) if "gate_up" in rest else [one]
                for part, rows in zip(
                    ["gate_proj", "up_proj"] if "gate_up" in rest else ["down_proj"], parts, strict=True
                ):
                    tensors[f"{begin}mlp.experts.{number}.{part}.weight"] = rows.clone()
        else:
            tensors[begin + rest.replace("post_norm", "shared_head.norm")] = tensor.clone()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})
    values = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": LAYERS}
    (folder / "config.json").write_text(json.dumps(values))


@torch.no_grad()
def count(folder: Path, tokens: int) -> None:
    """What transformers itself accepts."""
    transformers.Glm4MoeForCausalLM._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{LAYERS}.*"]
    model = transformers.Glm4MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    accepted: list[int] = []
    update = MTPCandidateGenerator.update_candidate_strategy

    def counted(self: Any, ids: Any, scores: Any, matches: Any) -> Any:
        accepted.append(int(matches))
        return update(self, ids, scores, matches)

    MTPCandidateGenerator.update_candidate_strategy = counted
    for number, prompt in enumerate(prompts()):
        accepted.clear()
        text = model.generate(torch.tensor([prompt]), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
                              use_mtp=True)  # fmt: skip
        print(
            f"prompt {number}: {sum(accepted)} of {len(accepted)} guesses accepted, {text.shape[1]} tokens", flush=True
        )


def count_here(folder: Path, tokens: int) -> None:
    with fb.LLM(folder, ctx=1024, speculate="mtp", draft_tokens=1, activations="exact") as llm:
        assert llm.engine._speculation is not None
        llm.engine._speculation.is_adaptive = False
        for number, prompt in enumerate(prompts()):
            answer = llm.generate(prompt, max_tokens=tokens, temperature=0)
            print(f"prompt {number}: {answer.accepted_tokens} of {answer.draft_tokens} here", flush=True)


def measure_speed(folder: Path, tokens: int, rounds: int, clock: Callable[[], float]) -> None:
    common: dict[str, Any] = {"format": "q8_0", "keep": False, "ctx": 1024}
    plain = fb.LLM(folder, speculate="off", **common)
    for draft_tokens in (1, 2, 3, 4, 6):
        with fb.LLM(folder, speculate="mtp", draft_tokens=draft_tokens, **common) as guessing:
            ratios, answers = [], list[Any]()
            for number in range(rounds + 1):
                prompt, seconds = prompts()[number % 4], []
                for llm in (plain, guessing):
                    begin = clock()
                    answers.append(llm.generate(prompt, max_tokens=tokens, temperature=0))
                    seconds.append((clock() - begin) / len(answers[-1].tokens))
                ratios.append(seconds[0] / seconds[1])
            accepted, drafted = (sum(getattr(one, f"{x}_tokens") for one in answers) for x in ("accepted", "draft"))
            same = all(one.tokens == two.tokens for one, two in zip(answers[::2], answers[1::2], strict=True))
            print(f"up to {draft_tokens}: {median(ratios[1:]):.2f} x plain decoding, {accepted} of {drafted} guesses "
                  f"right, the same text: {same}", flush=True)  # fmt: skip
    plain.close()


def prompts() -> list[list[int]]:
    language = Language()
    return [language.text(Random(number), 24) for number in range(2, 6)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--count", type=int, default=0, help="count guesses, in place of training")
    parser.add_argument("--speed", type=int, default=0, help="measure tokens/s, likewise")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, where other programs run")
    args = parser.parse_args()
    if args.count:
        count(args.folder, args.count)
        count_here(args.folder, args.count)
    elif args.speed:
        measure_speed(args.folder, args.speed, args.rounds, time.process_time if args.cpu_time else time.perf_counter)
    else:
        train(args.folder, args.steps, args.batch, args.length)


if __name__ == "__main__":
    main()
