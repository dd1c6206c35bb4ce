"""Loading a model of a file without the text around it."""

from __future__ import annotations

from typing import Any

from fewbit.files.model import ModelFile
from fewbit.load_options import LoadOptions
from fewbit.loading import Loaded
from fewbit.loading import load as load_with


def load(file: ModelFile, **options: Any) -> Loaded:
    return load_with(file, LoadOptions(**options))
