from __future__ import annotations

from types import ModuleType

import pytest

from .model import KERNELS


@pytest.fixture(scope="module", params=KERNELS, ids=lambda module: module.__name__.rpartition(".")[2])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    """The native kernels, where they are there, and the reference."""
    module: ModuleType = request.param
    return module
