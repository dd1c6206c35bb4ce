"""What weights are multiplied by while a model reads a text: second moments of the inputs of each matrix."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from os import PathLike

import numpy as np

from ..arrays import Floats
from ..errors import DataError, OutOfMemory, RequestError
from ..files.hessian import hessian_path, write_hessians
from ..files.imatrix import ImportanceMatrix, SquareSums, write_imatrix
from ..llm.progress import Progress, ProgressMeter
from ..loading import Loaded, check_ctx, place
from ..ops.memory import available_memory, readable
from ..ops.taps import Tap, tap
from ..text.windows import DEFAULT_WINDOW, Text, Window, cut_windows, leading_token, read_tokens
from .inputs import InputKey, ProductInputs, product_inputs
from .steps import LOGITS_BYTES, cache_tokens, run_windows
from .variants import Source, Variant, options

TAPS_BYTES = LOGITS_BYTES // 2  # of a step's inputs
LEAST_STEP, MOST_STEP = 16, 512  # tokens


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Second moments of the inputs of matrices.

    Args:
        imatrix: Mean squares by the name of the tensor, with the sums that they are made of.
        hessians: Sums of products of inputs by the name of the tensor, (columns, columns) or (experts, columns,
            columns). Tensors with the same inputs share an array. Empty unless they were asked for.
    """

    imatrix: ImportanceMatrix
    hessians: Mapping[str, Floats]

    def save(self, path: str | PathLike[str]) -> None:
        """Write a GGUF file that llama-quantize reads too, and beside it the Hessians, if there are any.

        Args:
            path: The file. Hessians of `imatrix.gguf` go to `imatrix.hessian.gguf`.
        """
        write_imatrix(path, self.imatrix)
        if self.hessians:
            write_hessians(hessian_path(path), self.hessians)


def calibrate(
    model: str | PathLike[str],
    text: Text,
    *,
    ctx: int = DEFAULT_WINDOW,
    hessian: bool = False,
    kv: str = "f16",
    activations: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress = False,
) -> Calibration:
    """Run a model over a text and add up squares of the inputs of each matrix; those of experts apart.

    Args:
        model: The model: whatever `LLM` takes. The more bits its weights have, the better.
        text: Text, the path of a text file, or token ids.
        ctx: Tokens of a window. The rest of the text that fills no window is left out.
        hessian: Also add up the products of all pairs of inputs, for quantization with error feedback. They take four
            bytes for each pair.
        kv: Format of the KV cache.
        activations: Precision of the inputs of matrix products.
        device: Where the model runs.
        threads: Number of threads.
        progress: True for a line on standard error, or a function that is called with (done, total).
    """
    variant = Variant(None, kv, activations, device, threads)
    options(variant)
    with closing(Source(model)) as source:
        tokens = read_tokens(text, source.tokenizer)
        windows = cut_windows(tokens, ctx, first=leading_token(source.tokenizer))
        run = _TappedModel(source, variant, windows, hessian)
        with closing(ProgressMeter(progress, len(windows), "windows")) as meter:
            for step in run_windows([run.loaded], windows, "hidden"):
                run.add(step.values[0])
                for chunk in step.chunks:
                    if chunk.end == len(windows[chunk.window].tokens):
                        meter.add(chunk.end)
        name = str(text) if isinstance(text, PathLike) else "text"
        imatrix = ImportanceMatrix(run.entries(), (name,), len(windows), len(windows[0].tokens))
        return Calibration(imatrix, run.hessians())


class _Sums:
    """Sums over the inputs of matrices: of squares, and of products of pairs if they are wanted."""

    def __init__(self, inputs: ProductInputs, hessian: bool) -> None:
        matrices, columns = inputs.matrices, inputs.columns
        self.squares, self.counts = np.zeros((matrices, columns)), np.zeros(matrices)
        self.products = np.zeros((matrices, columns, columns), np.float32) if hessian else None

    def add(self, inputs: ProductInputs) -> None:
        for matrix, rows in inputs.rows:
            self.counts[matrix] += len(rows)
            self.squares[matrix] += np.square(rows, dtype=np.float64).sum(axis=0)
            if self.products is not None:
                self.products[matrix] += rows.T @ rows


class _TappedModel:
    """A model whose steps give the inputs of its matrices, and the sums of them."""

    def __init__(self, source: Source, variant: Variant, windows: list[Window], hessian: bool) -> None:
        self.name, self.hessian = source.name, hessian
        self.loaded, self.taps = _load(source, variant, windows)
        self.sums: dict[InputKey, _Sums] = {}
        self.keys: dict[str, dict[InputKey, None]] = {}  # of the sums of each tensor
        if hessian:
            _check_memory(source.name, self.taps)

    def add(self, values: Floats) -> None:
        """Add the inputs of one step. Those that several matrices share are added once."""
        if not np.isfinite(values).all():
            raise DataError(f"{self.name}: the inputs of its matrices are not finite in this text")
        done: set[InputKey] = set()
        for inputs in product_inputs(self.taps, values):
            for name in inputs.names:
                self.keys.setdefault(name, {})[inputs.key] = None
            if inputs.key not in done:
                done.add(inputs.key)
                if inputs.key not in self.sums:
                    self.sums[inputs.key] = _Sums(inputs, self.hessian)
                self.sums[inputs.key].add(inputs)

    def entries(self) -> dict[str, SquareSums]:
        """Sums of squares by the name of the tensor."""
        found = {}
        for name, keys in self.keys.items():
            sums = [self.sums[key] for key in keys]
            squares, counts = sum(one.squares for one in sums), sum(one.counts for one in sums)
            found[name] = SquareSums(np.asarray(squares), np.asarray(counts))
        return found

    def hessians(self) -> dict[str, Floats]:
        """Sums of products by the name of the tensor; tensors with the same inputs share an array."""
        arrays = {key: _single(one.products) for key, one in self.sums.items() if one.products is not None}
        found = {}
        for name, keys in self.keys.items() if arrays else ():
            parts = [arrays[key] for key in keys]
            found[name] = parts[0] if len(parts) == 1 else np.asarray(sum(parts), np.float32)
        return found


def _load(source: Source, variant: Variant, windows: list[Window]) -> tuple[Loaded, list[Tap]]:
    """The tapped model, with steps that are short enough for its memory."""
    model = source.weights(source.device(variant))
    if model.is_encoder:
        raise RequestError(f"{source.name} is an encoder: its texts run whole, and calibration runs windows of a text")
    graph, taps = tap(model.graph, {id(w): name for name, w in model.matrices})
    if not taps:
        raise RequestError(f"{source.name} has no matrices to calibrate")
    tokens = max(LEAST_STEP, min(MOST_STEP, TAPS_BYTES // (4 * graph.result.width)))
    ctx = check_ctx(len(windows[0].tokens), model.config)
    tapped, device = replace(model, graph=graph), source.device(variant, tokens)
    return place(tapped, device, variant.kv, ctx, cache_tokens(windows, tokens)), taps


def _check_memory(name: str, taps: list[Tap]) -> None:
    """Refuse Hessians that do not fit into memory."""
    nbytes = {one.key: 4 * one.matrices * one.columns**2 for one in product_inputs(taps, None)}
    needed, available = sum(nbytes.values()), available_memory()
    if needed > available:
        sizes = f"{readable(needed)}, and {readable(available)} is free"
        raise OutOfMemory(f"the Hessians of {name} take {sizes}; leave hessian out")


def _single(products: Floats) -> Floats:
    return products[0] if len(products) == 1 else products
