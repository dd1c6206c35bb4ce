"""Ways to run a model: formats of weights and of the KV cache, activations, devices. Each is loaded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from os import PathLike
from typing import Any

from .. import devices
from ..errors import RequestError
from ..files.hub import find, recommended_activations
from ..files.hub.names import model_name
from ..files.model import ModelFile
from ..load_options import KvFormats, LoadOptions, kv_formats
from ..loading import Loaded, check_ctx, load_weights, place, with_activations
from ..models import LoadedModel, open_model
from ..quantizing import quantized
from ..text.tokenizer import Tokenizer
from ..text.windows import Window
from .steps import cache_tokens, step_tokens

Several = str | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a model."""

    format: str | None = None
    kv: KvFormats = "f16"
    activations: str | None = None
    device: str = "cpu"
    threads: int | None = None

    @property
    def kv_name(self) -> str:
        """
        >>> Variant(kv=("q8_0", "q4_0")).kv_name, Variant(kv="f16").kv_name
        ('q8_0/q4_0', 'f16')
        """
        k, v = kv_formats(self.kv)
        return k if k == v else f"{k}/{v}"


def variants(
    format: Several, kv: KvFormats | Sequence[KvFormats], activations: Several, device: str | Sequence[str],
    threads: int | Sequence[int] | None,
) -> list[Variant]:  # fmt: skip
    """Every combination of what is given; a list stands for several choices.

    >>> [(v.kv, v.activations) for v in variants(None, ["f16", "q8_0"], ["int8", "int16"], "cpu", None)]
    [('f16', 'int8'), ('f16', 'int16'), ('q8_0', 'int8'), ('q8_0', 'int16')]
    """
    choices: list[list[Any]] = [_choices(value) for value in (format, kv, activations, device, threads)]
    found = [Variant(*choice) for choice in product(*choices)]
    if not found:
        raise RequestError("there is nothing to evaluate: a list of choices is empty")
    for variant in found:
        options(variant)  # what cannot be right is refused before anything is loaded
    return found


def _choices(value: object) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def options(variant: Variant, tokens: int | None = None) -> LoadOptions:
    """The options of a variant whose steps take so many tokens."""
    return LoadOptions(
        device=variant.device, kv=variant.kv, threads=variant.threads, activations=variant.activations,
        max_batched_tokens=tokens,
    )  # fmt: skip


class Source:
    """A model to evaluate: its file, and its tokenizer."""

    def __init__(self, model: str | PathLike[str], format: str | None = None) -> None:
        path = find(model)
        self.name = model_name(path)
        self.file: ModelFile = open_model(path)
        if format is not None:
            self.file = quantized(self.file, format)
        self.metadata = self.file.tokenizer()
        self.tokenizer = Tokenizer.from_metadata(self.metadata)
        self.file_bytes = self.file.file_bytes
        self._weights: dict[tuple[str, str], LoadedModel] = {}

    @property
    def vocab(self) -> int:
        return int(self.file.infos["token_embd.weight"].shape[0])

    def load(self, variant: Variant, windows: Sequence[Window], models: int = 1) -> Loaded:
        """The model as a variant says, with a cache for windows.

        Args:
            variant: How it runs. Variants whose weights lie in memory alike share them.
            windows: What it will run.
            models: Number of models that run beside each other, which share the memory of logits.
        """
        tokens = step_tokens(self.vocab, models)
        device = self.device(variant, tokens)
        model = self.weights(device)
        if model.is_encoder:
            raise RequestError(f"{self.name} is an encoder: it writes no text, so it cannot be scored")
        ctx = check_ctx(max(len(window.tokens) for window in windows), model.config)
        return place(model, device, variant.kv, ctx, cache_tokens(windows, tokens))

    def activations(self, variant: Variant) -> str | None:
        """The activations that a variant runs with; None: the device's own."""
        return self._options(variant).activations

    def device(self, variant: Variant, tokens: int | None = None) -> devices.Device:
        """The device of a variant, for steps of so many tokens."""
        return devices.get(variant.device, self._options(variant, tokens))

    def _options(self, variant: Variant, tokens: int | None = None) -> LoadOptions:
        given = options(variant, tokens)
        return with_activations(given, devices.get(variant.device, given), recommended_activations(self.metadata))

    def weights(self, device: devices.Device) -> LoadedModel:
        """The weights in the layout that a device reads."""
        key = device.name, device.layout
        if key not in self._weights:
            self._weights[key] = load_weights(self.file, device)
        return self._weights[key]

    def close(self) -> None:
        self._weights.clear()
        self.file.close()
