"""`merge_adapter`: a model with a LoRA adapter in its weights, as a GGUF file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..files.hub import find
from ..files.hub.folder import Progress
from ..files.lora import read_adapter
from ..models import open_model
from ..models.merged import MergedModel
from .model import QuantizedModel, quantize_model
from .moments import Source
from .options import KEEP


def merge_adapter(
    model: str | os.PathLike[str],
    adapter: str | os.PathLike[str],
    out: str | os.PathLike[str],
    format: str = KEEP,
    *,
    tensors: Mapping[str, str] | None = None,
    importance: Source = None,
    force: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizedModel:
    """Write a model with a LoRA adapter merged into its weights, as a GGUF file.

        fb.merge_adapter("model-f16.gguf", "adapters/sql", "sql.gguf", "q4_k_m")

    Tensors are read, changed, packed and written one after another. Merge into the unquantized model where you have it:
    weights that were packed already are rounded a second time.

    Args:
        model: Path to a GGUF file or a safetensors folder, a URL, `hf:org/repo`, or a built-in name.
        adapter: A folder that PEFT wrote, or a GGUF adapter.
        out: The file to write.
        format: A mix such as "q4_k_m", or one format for all matrices. Default: "keep", as in the model.
        tensors: Formats of some matrices by regular expressions; see `quantize_model`.
        importance: A weight for each column of a matrix; see `quantize_model`.
        force: Replace a file that is there.
        threads: Number of threads. Defaults to all usable cores.
        progress: Called with what is done, bytes done and bytes in all.

    Returns:
        The path, and what became of each tensor.
    """
    base = open_model(find(model, progress=progress))
    merged = MergedModel(base, read_adapter(adapter))
    return quantize_model(
        merged, out, format, tensors=tensors, importance=importance, force=force, threads=threads, progress=progress
    )
