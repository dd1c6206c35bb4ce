"""Short names of models in repositories: `family:tag`, as Ollama writes them.

To add a model, write a line in `_ROWS`. The first line of a family is what its name alone means. Repositories are the
makers' own where they have GGUF files, else those of people who convert many models.
"""

from __future__ import annotations

from typing import NamedTuple

from .names import quantization
from .wheel import TABLE, Builtin

_LATEST = ":latest"


class Named(NamedTuple):
    """A model in a repository. Its size is approximate: the repository may change."""

    name: str
    repo: str
    file: str  # the first of a split model
    bytes: int
    license: str
    use: str = "chat"

    @property
    def place(self) -> str:
        """The model as `find` takes it. It names the quantization: repositories rename files."""
        return f"hf:{self.repo}:{str(quantization(self.file)).lower()}"

    @property
    def about(self) -> str:
        kind = str(quantization(self.file))
        stem = self.file[: self.file.upper().rindex(kind)].rstrip("-._").rpartition("/")[2]
        return f"{stem}, {kind}" + (", for embeddings" if self.use == "embed" else "")


_A2, _MIT, _GEMMA, _LFM = "Apache-2.0", "MIT", "Gemma", "LFM Open 1.0"

# name, repository, file, MB, license, what it is for
_ROWS: tuple[tuple[str, str, str, int, str] | tuple[str, str, str, int, str, str], ...] = (
    ("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Llama-3.2-3B-Instruct-Q4_K_M.gguf", 2019, "Llama 3.2"),
    ("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", 808, "Llama 3.2"),
    ("llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", 4921,
     "Llama 3.1"),
    ("llama3.3:70b", "bartowski/Llama-3.3-70B-Instruct-GGUF", "Llama-3.3-70B-Instruct-Q4_K_M.gguf", 42520,
     "Llama 3.3"),
    ("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf", 2490, _GEMMA),
    ("gemma3:270m", "ggml-org/gemma-3-270m-it-GGUF", "gemma-3-270m-it-Q8_0.gguf", 292, _GEMMA),
    ("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF", "gemma-3-1b-it-Q4_K_M.gguf", 806, _GEMMA),
    ("gemma3:12b", "ggml-org/gemma-3-12b-it-GGUF", "gemma-3-12b-it-Q4_K_M.gguf", 7301, _GEMMA),
    ("gemma3:27b", "ggml-org/gemma-3-27b-it-GGUF", "gemma-3-27b-it-Q4_K_M.gguf", 16547, _GEMMA),
    ("gemma4:e4b", "unsloth/gemma-4-E4B-it-GGUF", "gemma-4-E4B-it-Q4_K_M.gguf", 4980, _A2),
    ("gemma4:e2b", "unsloth/gemma-4-E2B-it-GGUF", "gemma-4-E2B-it-Q4_K_M.gguf", 3110, _A2),
    ("gemma2:2b", "bartowski/gemma-2-2b-it-GGUF", "gemma-2-2b-it-Q4_K_M.gguf", 1709, _GEMMA),
    ("gemma2:9b", "bartowski/gemma-2-9b-it-GGUF", "gemma-2-9b-it-Q4_K_M.gguf", 5761, _GEMMA),
    ("qwen3:8b", "Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf", 5028, _A2),
    ("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", 639, _A2),
    ("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF", "Qwen3-1.7B-Q8_0.gguf", 1834, _A2),
    ("qwen3:4b", "Qwen/Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf", 2497, _A2),
    ("qwen3:14b", "Qwen/Qwen3-14B-GGUF", "Qwen3-14B-Q4_K_M.gguf", 9002, _A2),
    ("qwen3:30b", "Qwen/Qwen3-30B-A3B-GGUF", "Qwen3-30B-A3B-Q4_K_M.gguf", 18557, _A2),
    ("qwen3:32b", "Qwen/Qwen3-32B-GGUF", "Qwen3-32B-Q4_K_M.gguf", 19762, _A2),
    ("qwen3.5:9b", "unsloth/Qwen3.5-9B-GGUF", "Qwen3.5-9B-Q4_K_M.gguf", 5680, _A2),
    ("qwen3.5:0.8b", "unsloth/Qwen3.5-0.8B-GGUF", "Qwen3.5-0.8B-Q4_K_M.gguf", 533, _A2),
    ("qwen3.5:2b", "unsloth/Qwen3.5-2B-GGUF", "Qwen3.5-2B-Q4_K_M.gguf", 1280, _A2),
    ("qwen3.5:4b", "unsloth/Qwen3.5-4B-GGUF", "Qwen3.5-4B-Q4_K_M.gguf", 2740, _A2),
    ("qwen3.5:35b", "unsloth/Qwen3.5-35B-A3B-GGUF", "Qwen3.5-35B-A3B-Q4_K_M.gguf", 22000, _A2),
    ("qwen2.5:7b", "bartowski/Qwen2.5-7B-Instruct-GGUF", "Qwen2.5-7B-Instruct-Q4_K_M.gguf", 4683, _A2),
    ("qwen2.5:0.5b", "bartowski/Qwen2.5-0.5B-Instruct-GGUF", "Qwen2.5-0.5B-Instruct-Q4_K_M.gguf", 398, _A2),
    ("qwen2.5:1.5b", "bartowski/Qwen2.5-1.5B-Instruct-GGUF", "Qwen2.5-1.5B-Instruct-Q4_K_M.gguf", 986, _A2),
    ("qwen2.5-coder:7b", "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF", "Qwen2.5-Coder-7B-Instruct-Q4_K_M.gguf", 4683,
     _A2),
    ("qwen2.5-coder:1.5b", "bartowski/Qwen2.5-Coder-1.5B-Instruct-GGUF", "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf",
     986, _A2),
    ("qwen2.5-coder:14b", "bartowski/Qwen2.5-Coder-14B-Instruct-GGUF", "Qwen2.5-Coder-14B-Instruct-Q4_K_M.gguf", 8988,
     _A2),
    ("qwen2.5-coder:32b", "bartowski/Qwen2.5-Coder-32B-Instruct-GGUF", "Qwen2.5-Coder-32B-Instruct-Q4_K_M.gguf",
     19851, _A2),
    ("mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf", 4373, _A2),
    ("mistral-nemo:12b", "bartowski/Mistral-Nemo-Instruct-2407-GGUF", "Mistral-Nemo-Instruct-2407-Q4_K_M.gguf", 7477,
     _A2),
    ("ministral:8b", "mistralai/Ministral-3-8B-Instruct-2512-GGUF", "Ministral-3-8B-Instruct-2512-Q4_K_M.gguf", 5200,
     _A2),
    ("ministral:3b", "mistralai/Ministral-3-3B-Instruct-2512-GGUF", "Ministral-3-3B-Instruct-2512-Q4_K_M.gguf", 2147,
     _A2),
    ("ministral:14b", "mistralai/Ministral-3-14B-Instruct-2512-GGUF", "Ministral-3-14B-Instruct-2512-Q4_K_M.gguf",
     8240, _A2),
    ("mixtral:8x7b", "mradermacher/Mixtral-8x7B-Instruct-v0.1-GGUF", "Mixtral-8x7B-Instruct-v0.1.Q4_K_M.gguf", 28448,
     _A2),
    ("phi4:14b", "bartowski/phi-4-GGUF", "phi-4-Q4_K_M.gguf", 9053, _MIT),
    ("phi4-mini:3.8b", "bartowski/microsoft_Phi-4-mini-instruct-GGUF", "microsoft_Phi-4-mini-instruct-Q4_K_M.gguf",
     2492, _MIT),
    ("phi3.5:3.8b", "bartowski/Phi-3.5-mini-instruct-GGUF", "Phi-3.5-mini-instruct-Q4_K_M.gguf", 2393, _MIT),
    ("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-mxfp4.gguf", 12110, _A2),
    ("gpt-oss:120b", "ggml-org/gpt-oss-120b-GGUF", "gpt-oss-120b-mxfp4-00001-of-00003.gguf", 63387, _A2),
    ("deepseek-r1:8b", "unsloth/DeepSeek-R1-0528-Qwen3-8B-GGUF", "DeepSeek-R1-0528-Qwen3-8B-Q4_K_M.gguf", 5028, _MIT),
    ("deepseek-r1:1.5b", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF", "DeepSeek-R1-Distill-Qwen-1.5B-Q4_K_M.gguf",
     1117, _MIT),
    ("deepseek-r1:7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF", "DeepSeek-R1-Distill-Qwen-7B-Q4_K_M.gguf", 4683,
     _MIT),
    ("smollm2:1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF", "SmolLM2-1.7B-Instruct-Q4_K_M.gguf", 1056, _A2),
    ("smollm2:360m", "bartowski/SmolLM2-360M-Instruct-GGUF", "SmolLM2-360M-Instruct-Q4_K_M.gguf", 271, _A2),
    ("smollm3:3b", "ggml-org/SmolLM3-3B-GGUF", "SmolLM3-Q4_K_M.gguf", 1915, _A2),
    ("granite4:micro", "ibm-granite/granite-4.0-micro-GGUF", "granite-4.0-micro-Q4_K_M.gguf", 2100, _A2),
    ("granite4:tiny-h", "ibm-granite/granite-4.0-h-tiny-GGUF", "granite-4.0-h-tiny-Q4_K_M.gguf", 4230, _A2),
    ("granite3.3:2b", "ibm-granite/granite-3.3-2b-instruct-GGUF", "granite-3.3-2b-instruct-Q4_K_M.gguf", 1545, _A2),
    ("granite3.3:8b", "ibm-granite/granite-3.3-8b-instruct-GGUF", "granite-3.3-8b-instruct-Q4_K_M.gguf", 4943, _A2),
    ("olmo2:7b", "allenai/OLMo-2-1124-7B-Instruct-GGUF", "olmo-2-1124-7B-instruct-Q4_K_M.gguf", 4472, _A2),
    ("olmo2:1b", "allenai/OLMo-2-0425-1B-Instruct-GGUF", "OLMo-2-0425-1B-Instruct-Q4_K_M.gguf", 936, _A2),
    ("olmo3:7b", "unsloth/Olmo-3-7B-Instruct-GGUF", "Olmo-3-7B-Instruct-Q4_K_M.gguf", 4472, _A2),
    ("lfm2:1.2b", "LiquidAI/LFM2-1.2B-GGUF", "LFM2-1.2B-Q4_K_M.gguf", 731, _LFM),
    ("lfm2:350m", "LiquidAI/LFM2-350M-GGUF", "LFM2-350M-Q4_K_M.gguf", 229, _LFM),
    ("lfm2:2.6b", "LiquidAI/LFM2-2.6B-GGUF", "LFM2-2.6B-Q4_K_M.gguf", 1564, _LFM),
    ("nomic-embed-text:v1.5", "nomic-ai/nomic-embed-text-v1.5-GGUF", "nomic-embed-text-v1.5.Q8_0.gguf", 146, _A2,
     "embed"),
    ("all-minilm:l6-v2", "second-state/All-MiniLM-L6-v2-Embedding-GGUF", "all-MiniLM-L6-v2-Q8_0.gguf", 25, _A2,
     "embed"),
    ("bge-small:v1.5", "CompendiumLabs/bge-small-en-v1.5-gguf", "bge-small-en-v1.5-q8_0.gguf", 37, _MIT, "embed"),
    ("embeddinggemma:300m", "ggml-org/embeddinggemma-300M-GGUF", "embeddinggemma-300M-Q8_0.gguf", 334, _GEMMA,
     "embed"),
    ("qwen3-embedding:0.6b", "Qwen/Qwen3-Embedding-0.6B-GGUF", "Qwen3-Embedding-0.6B-Q8_0.gguf", 639, _A2, "embed"),
)  # fmt: skip

NAMED = {row[0]: Named(row[0], row[1], row[2], row[3] * 10**6, *row[4:]) for row in _ROWS}

_FAMILIES = {name.partition(":")[0]: name for name in reversed(NAMED)}  # the first one stays

ALIASES = dict(reversed(_FAMILIES.items())) | {
    **{name: name for name in TABLE},  # a built-in model goes before a family of the same name
    "smollm2:135m": "smollm2",
    "qwen3-0.6b": "qwen3:0.6b",
    "qwen3-1.7b": "qwen3:1.7b",
    "qwen3-4b": "qwen3:4b",
    "qwen3-8b": "qwen3:8b",
    "smollm2-360m": "smollm2:360m",
    "smollm2-1.7b": "smollm2:1.7b",
    "smollm3-3b": "smollm3:3b",
    "granite-2b": "granite3.3:2b",
    "olmo2-1b": "olmo2:1b",
    "gpt-oss-20b": "gpt-oss:20b",
    "nomic-embed": "nomic-embed-text:v1.5",
}


def all_names() -> list[str]:
    """Every name that `known` understands, but for those with the tag `latest`.

    >>> "qwen3" in all_names() and "qwen3:4b" in all_names()
    True
    """
    return [*dict.fromkeys([*ALIASES, *NAMED])]


def known(name: str) -> Builtin | Named | None:
    """The model of a name: `family:tag`, `family` or `family:latest`, which mean its default, or an older name.

    >>> [str(model and model.name) for model in map(known, ("qwen3:4b", "llama3.2", "smollm2:latest", "gpt-5"))]
    ['qwen3:4b', 'llama3.2:3b', 'smollm2', 'None']
    """
    name = name.removesuffix(_LATEST) if name.count(":") == 1 else name
    name = ALIASES.get(name, name)
    return TABLE.get(name) or NAMED.get(name)
