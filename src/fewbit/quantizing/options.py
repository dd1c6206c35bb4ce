"""What a model is quantized to, and how: one record for `quantize_model` and for `fewbit quantize`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from typing import Annotated

from ..files.model import ModelFile
from ..option_fields import Choice, OptionProgress
from ..text.windows import Text
from .moments import Source

DEFAULT = "q4_k_m"
KEEP = "keep"  # in place of a format: each tensor keeps its own, or gets the nearest of GGUF files


@dataclass(frozen=True)
class QuantizeOptions:
    """What a model is quantized to, and how; `quantize_model` takes the same.

    The first sentence about an option is its help in the command.

    Args:
        model: Path to a GGUF file or a safetensors folder, a URL, `hf:org/repo`, a built-in name, or an open model.
        out: The file to write.
        format: A mix such as "q4_k_m", a format for all matrices, or "keep". A mix chooses the format of each tensor
            as llama.cpp does; "keep" keeps the formats, or takes the nearest where GGUF files have none. Default:
            "q4_k_m".
        bits: Bits for each weight, in place of a format. The format of each matrix is chosen by the loss that is
            measured, so that the model loses least within that size.
        size: Size of the file in place of a format: bytes, or a text such as "3.5GB". It is used as `bits` is.
        text: Text that shows which matrices matter; `bits` and `size` need one. A text, its path or token ids: the
            model reads 128 tokens of it for each matrix.
        tensors: Formats of matrices whose names have a pattern, a regular expression. The first that is found in a name
            counts: `{"ffn_down": "q6_k"}`.
        importance: A weight for each column of a matrix: a file of `fewbit calibrate` or of llama.cpp. Or the weights
            by the tensor's name; (experts, columns) for experts apart.
        error_feedback: Hessians, a file of `fewbit calibrate --hessian`: later columns make up for earlier ones. Or
            the sum of x x^T over the inputs x of a matrix, by the tensor's name: (columns, columns), or (experts,
            columns, columns). The columns of such a matrix are rounded one after another, then scales and codes are
            improved in turn. It takes longer, and importance is not used there.
        mmproj: Write the image encoder of a model that sees, not its text model. The model is an `mmproj` file, or a
            folder with both. Embeddings of patches and positions, norms and biases stay floats.
        pure: Give all matrices the format that most would have in the mix.
        force: Replace a file that is there.
        dry_run: Only choose formats; write nothing.
        threads: Number of threads. Defaults to all usable cores.
        progress: Called with what is done, bytes done and bytes in all.
    """

    model: Annotated[str | PathLike[str] | ModelFile, Choice(scope="python")]
    out: Annotated[str | PathLike[str], Choice(scope="python")]
    format: Annotated[str | None, Choice(DEFAULT, flag="-f")] = None
    _: KW_ONLY
    bits: Annotated[float | None, Choice(metavar="N")] = None
    size: Annotated[str | int | None, Choice(metavar="SIZE")] = None
    text: Annotated[Text | None, Choice(metavar="FILE")] = None
    tensors: Annotated[Mapping[str, str] | None, Choice(command="tensor", metavar="PATTERN=FORMAT")] = None
    importance: Annotated[Source, Choice(command="imatrix", metavar="FILE")] = None
    error_feedback: Annotated[Source, Choice(metavar="FILE")] = None
    mmproj: bool = False
    pure: bool = False
    force: bool = False
    dry_run: bool = False
    threads: Annotated[int | None, Choice("all usable cores", flag="-t")] = None
    progress: Annotated[OptionProgress | None, Choice(scope="python")] = None
