"""FEWBIT_EMULATE_CUDA=1 runs the tests of GPU kernels on the CPU, where there is no GPU: slowly."""

import os

import pytest

from fewbit.errors import FewbitError
from fewbit.ops.cuda import gpu

if os.environ.get("FEWBIT_EMULATE_CUDA"):
    from .emulator.device import install

    install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a GPU are skipped where there is none."""
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    try:
        gpu()
    except FewbitError as error:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=str(error)))
