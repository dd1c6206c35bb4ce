"""Short names of small models that anybody may use, and where each of them lies."""

from __future__ import annotations

from typing import NamedTuple


class Named(NamedTuple):
    """A model in a repository. Its size is about right: the repository may change."""

    name: str
    about: str
    license: str
    place: str  # as `find` takes it
    bytes: int


_MB, _GB = 10**6, 10**9

NAMED = {
    model.name: model
    for model in (
        Named("qwen3-0.6b", "Qwen3 0.6B, Q8_0", "Apache-2.0", "hf:Qwen/Qwen3-0.6B-GGUF:q8_0", 639 * _MB),
        Named("qwen3-1.7b", "Qwen3 1.7B, Q8_0", "Apache-2.0", "hf:Qwen/Qwen3-1.7B-GGUF:q8_0", 1830 * _MB),
        Named("qwen3-4b", "Qwen3 4B, Q4_K_M", "Apache-2.0", "hf:Qwen/Qwen3-4B-GGUF:q4_k_m", 2500 * _MB),
        Named("qwen3-8b", "Qwen3 8B, Q4_K_M", "Apache-2.0", "hf:Qwen/Qwen3-8B-GGUF:q4_k_m", 5030 * _MB),
        Named("smollm2-360m", "SmolLM2 360M Instruct, Q4_K_M", "Apache-2.0",
              "hf:bartowski/SmolLM2-360M-Instruct-GGUF:q4_k_m", 271 * _MB),
        Named("smollm2-1.7b", "SmolLM2 1.7B Instruct, Q4_K_M", "Apache-2.0",
              "hf:bartowski/SmolLM2-1.7B-Instruct-GGUF:q4_k_m", 1060 * _MB),
        Named("smollm3-3b", "SmolLM3 3B, Q4_K_M", "Apache-2.0", "hf:ggml-org/SmolLM3-3B-GGUF:q4_k_m", 1920 * _MB),
        Named("granite-2b", "Granite 3.3 2B Instruct, Q4_K_M", "Apache-2.0",
              "hf:ibm-granite/granite-3.3-2b-instruct-GGUF:q4_k_m", 1550 * _MB),
        Named("olmo2-1b", "OLMo 2 1B Instruct, Q4_K_M", "Apache-2.0",
              "hf:allenai/OLMo-2-0425-1B-Instruct-GGUF:q4_k_m", 935 * _MB),
        Named("gpt-oss-20b", "gpt-oss 20B, MXFP4 experts", "Apache-2.0", "hf:ggml-org/gpt-oss-20b-GGUF", 12 * _GB),
        Named("nomic-embed", "nomic-embed-text v1.5, Q8_0, for embeddings", "Apache-2.0",
              "hf:nomic-ai/nomic-embed-text-v1.5-GGUF:q8_0", 146 * _MB),
    )
}  # fmt: skip
