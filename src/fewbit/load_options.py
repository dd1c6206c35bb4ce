"""What a user may choose when a model is loaded: one record from the command line to the device.

To add an option: a field of `LoadOptions` with a line in its docstring, and the place that uses it. `LLM` takes it as a
parameter and documents it, and the commands that load a model have an option for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache
from os import PathLike
from typing import Annotated, Any

from .errors import DtypeError, FormatError
from .option_fields import Choice, OptionField, OptionProgress, option_fields

KvFormats = str | tuple[str, str]  # of K and V


def kv_formats(kv: Any) -> tuple[str, str]:
    """The names of the formats of K and V, checked.

    >>> kv_formats("f16"), kv_formats("q8_0/q4_0"), kv_formats(("q8_0", "f16"))
    (('f16', 'f16'), ('q8_0', 'q4_0'), ('q8_0', 'f16'))
    """
    from .cache.layout import kv_format  # the help of a command needs no formats

    parts = kv.split("/") if isinstance(kv, str) else kv
    wrong = f'kv must be a format such as "q8_0", or two such as "q8_0/q4_0", got {kv!r}'
    if not isinstance(parts, tuple | list):
        raise DtypeError(wrong)
    if not 1 <= len(parts) <= 2 or (len(parts) == 1 and not isinstance(kv, str)):
        raise FormatError(wrong)
    kv_format(parts[0], "k"), kv_format(parts[-1], "v")
    return parts[0], parts[-1]


@dataclass(frozen=True)
class LoadOptions:
    """What a user may choose when a model is loaded; `LLM` takes the same.

    The first sentence about an option is its help in the commands.

    Args:
        model: Path to a GGUF file or to a folder with config.json and safetensors, a URL, `hf:org/repo`, or a built-in
            name.
        device: Where the model runs: "cpu", "cuda" (an NVIDIA GPU), "cuda:1", "webgpu" (any GPU), or "auto": a GPU if
            there is one. Several, as in "cuda:0,cuda:1", divide its layers.
        kv: Format of the KV cache, such as "q8_0" or "f8_e4m3"; K/V where they differ: "q8_0/q4_0".
        ctx: Maximum sequence length, prompt and answer, in tokens. Defaults to 8192 or the model's own, whichever is
            smaller, or with a warning to less where memory is short.
        exact: The same as activations="exact".
        threads: Number of threads. Defaults to all usable cores.
        pin_threads: Pin each thread to a physical core that the process may use; Linux only. All models of a process
            share its threads: while one of them has `pin_threads` or `numa`, another one may have the same or neither.
        numa: On machines of several NUMA nodes, spread threads, weights and KV cache over all of them ("distribute"),
            or keep them on one ("node:1"); "off" leaves it to the system. Weights that stay in the file's memory map
            (see `repack`) are where the system's file cache has them. On one node nothing changes. Linux only.
        rope_scaling: Stretch positions, for sequences longer than the model was made for: a kind and a factor, such as
            "yarn:4". `ctx` may then be so many times the model's own. Kinds are "yarn", "dynamic" (NTK, for sequences
            of `ctx` tokens) and "linear".
        activations: Precision of the inputs of matrix products: "int8", "int16" (more exact, somewhat slower) or
            "exact" (f32, slow); WebGPU has "exact", "f16" and "int8". The error of a product is about 250x lower with
            "int16". Defaults to "int16" for the built-in model. For other models defaults to "int16" for one token at a
            time on instruction sets where that costs less than 15%, else to "int8"; `fewbit doctor` shows which. Logits
            that can be sampled use at least 16 bits.
        repack: Reorder weights in memory for speed; repack=False uses the file's memory map. The new order makes
            products of up to 16 tokens faster (see `fewbit.repack`); processes share a memory map. Defaults to True
            wherever that helps and memory suffices.
        cache_bytes: Size of the KV cache in bytes, of all layers. Defaults to up to 8 sequences of `ctx` tokens, in at
            most a quarter of the available memory, and to one in any case; with more than 64 outputs in a step to 512
            tokens of each, where that is more.
        max_seqs: Maximum number of outputs in a step. Defaults to 64, with "cuda" to 64 to 256: as many as the KV cache
            has 512 tokens for.
        max_batched_tokens: Maximum number of tokens in a step; fewer need less memory. Defaults to 512, on a GPU to
            4096.
        batch_invariant: Compute the same bits alone and in any batch, so that a seed gives the same answer again;
            slower for many tokens. Without it, kernels depend on the batch size, and rounding differences can change a
            sampled token.
        speculate: Guess tokens and verify several in one step: "ngram" looks up what followed the last tokens before,
            "mtp" asks the model's own layer for that (Qwen3.5, GLM-4.5, DeepSeek V3), "off" guesses nothing. The text
            is the same, apart from rounding; with `batch_invariant` all bits are. Defaults to "auto": "ngram" on the
            CPU, or the draft model if there is one.
        draft: A small model with the same tokens that guesses, in the place of "ngram": a path, URL or name. Or the
            folder of an EAGLE-3 head that was trained for the model.
        draft_tokens: Most tokens that are guessed at once. How many are follows from what steps cost and from how many
            guesses were right. Defaults to 16, with a draft model to 4, with "mtp" or a head to 3.
        gpu_layers: Number of layers, the last ones, that run on the GPU; the others run on the CPU. Defaults to all, or
            with a warning to as many as fit.
        cpu_experts: Number of layers, the first ones with experts, whose experts stay on the CPU; all else runs on the
            GPU ("cuda"). Defaults to none, or with a warning to as few as make the rest fit.
        stages: Number of processes that divide the layers, in a Ray cluster (the extra `cluster`), this one among them.
            Each has its own `threads`, and a GPU of its own with device="cuda".
        tensor_parallel: Number of devices of this machine that share every layer, each with some heads and columns of
            it: the first GPUs with device="cuda", those that `device` names, or threads with device="cpu".
        format: Format to quantize f32, f16 and bf16 weights to, such as "q8_0", or a mix such as "q4_k_m".
        keep: Keep the result of `format` for the next start. It is a GGUF file in the cache folder.
        max_waiting: Maximum number of requests that wait; further ones are refused with `QueueFull`. Defaults to no
            limit.
        max_per_client: Maximum number of requests of one client. Defaults to no limit.
        cache_dir: Folder for long prompts that are evicted from the KV cache, and for all of them at the end. They are
            found again after a restart. Keep it as private as the prompts.
        cache_dir_bytes: Size of `cache_dir` in bytes. Defaults to 8 GiB; the least recently used prompts are removed
            first.
        mmproj: File of the image encoder, for models that see: a path, a URL or `hf:org/repo:file`; "off": none.
            Defaults to the mmproj file in the model's folder or repository, or to the encoder in a folder with
            safetensors.
        adapters: LoRA adapters to load with the model: paths of PEFT folders or GGUF files by name.
        progress: Called with (what, bytes done, bytes in total or None) while a model is fetched, quantized or sent to
            a GPU.
    """

    model: Annotated[str | PathLike[str], Choice(scope="python")] = "smollm2"
    device: str = "cpu"
    kv: KvFormats = "f16"
    ctx: Annotated[int | None, Choice("the model's, at most 8192, as memory allows", flag="-c")] = None
    exact: bool = False
    threads: Annotated[int | None, Choice("all usable cores", flag="-t")] = None
    _: KW_ONLY
    pin_threads: bool = False
    numa: Annotated[str, Choice(metavar="WHERE")] = "off"
    rope_scaling: Annotated[str | None, Choice("the model's own")] = None
    activations: Annotated[
        str | None, Choice("see fewbit doctor; int16 for smollm2", values=("int8", "int16", "exact", "f16"))
    ] = None
    repack: Annotated[bool | None, Choice("where it gains")] = None
    cache_bytes: Annotated[int | None, Choice("as memory allows", scope="serve")] = None
    max_seqs: Annotated[int | None, Choice("64, on a GPU up to 256", scope="serve")] = None
    max_batched_tokens: Annotated[int | None, Choice("512, on a GPU 4096")] = None
    batch_invariant: bool = False
    speculate: Annotated[str, Choice(values=("auto", "ngram", "mtp", "off"))] = "auto"
    draft: Annotated[str | PathLike[str] | None, Choice("no draft model", metavar="MODEL")] = None
    draft_tokens: Annotated[int | None, Choice("16, with a draft model 4, with mtp 3")] = None
    gpu_layers: Annotated[int | None, Choice("all, or as many as fit", least=0)] = None
    cpu_experts: Annotated[int | None, Choice("none, or as few as make the rest fit", least=0)] = None
    stages: Annotated[int | None, Choice("1")] = None
    tensor_parallel: Annotated[int | None, Choice("1")] = None
    format: str | None = None
    keep: bool = True
    max_waiting: Annotated[int | None, Choice(least=0, scope="python")] = None
    max_per_client: Annotated[int | None, Choice(scope="python")] = None
    cache_dir: Annotated[str | PathLike[str] | None, Choice(scope="serve")] = None
    cache_dir_bytes: Annotated[int | None, Choice("8 GiB", least=0, scope="serve")] = None
    mmproj: Annotated[str | PathLike[str] | None, Choice("the one beside the model", metavar="FILE")] = None
    adapters: Annotated[Mapping[str, str | PathLike[str]] | None, Choice(scope="python")] = None
    progress: Annotated[OptionProgress | None, Choice(scope="python")] = None

    def __post_init__(self) -> None:
        from .models.rope_scaling import read_scaling
        from .ops.arguments import MODEL_ACTIVATIONS, chosen_activations
        from .ops.topology import chosen_node

        for option in load_options():
            value = option.check(vars(self)[option.name])
            object.__setattr__(self, option.name, value)
        kv_formats(self.kv)
        chosen_node(self.numa)
        if self.rope_scaling is not None:
            read_scaling(self.rope_scaling)
        object.__setattr__(self, "activations", chosen_activations(self.activations, self.exact, MODEL_ACTIVATIONS))


@cache
def load_options() -> tuple[OptionField, ...]:
    """The fields of `LoadOptions`, in their order.

    >>> [option.name for option in load_options() if option.choice.scope == "serve"]
    ['cache_bytes', 'max_seqs', 'cache_dir', 'cache_dir_bytes']
    """
    return option_fields(LoadOptions)
