"""Tests that need an adapter of WebGPU are skipped where there is none."""

from collections.abc import Iterator

import pytest

from fewbit.errors import FewbitError
from fewbit.ops.webgpu import Gpu, list_adapters, open_gpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("webgpu")]
    if marked and not list_adapters():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no WebGPU adapter: neither the package wgpu nor a driver"))


@pytest.fixture
def gpu() -> Gpu:
    try:
        return open_gpu()
    except FewbitError as error:
        pytest.skip(str(error))


@pytest.fixture
def small_bindings(gpu: Gpu) -> Iterator[Gpu]:
    """Bindings so small that matrices are split."""
    before, gpu.binding_bytes = gpu.binding_bytes, 2000
    yield gpu
    gpu.binding_bytes = before
