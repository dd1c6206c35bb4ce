"""FEWBIT_EMULATE_CUDA=1 runs the tests of GPU kernels on the CPU, where there is no GPU: slowly."""

import json
import os
from collections.abc import Callable

import pytest

from fewbit.errors import FewbitError
from fewbit.ops import cuda
from fewbit.ops.cuda import compile as compiler
from fewbit.ops.cuda import gpu
from fewbit.ops.cuda.kernels import Entry

from .compiling import Used, compile_kernels, report_path
from .row_cases import open_gpu

if os.environ.get("FEWBIT_EMULATE_CUDA"):
    from .emulator.device import install

    install()

KERNELS = "kernels for "
_compiled: dict[str, Used] = {}


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


@pytest.fixture(scope="module")
def device() -> cuda.Session:
    return open_gpu()


@pytest.fixture
def nvrtc() -> None:
    """Tests that compile are skipped where there is no compiler."""
    try:
        compiler.compiler_version()
    except FewbitError as error:
        pytest.skip(str(error))


@pytest.fixture
def compiled(nvrtc: None, record_property: Callable[[str, object], None]) -> Callable[[list[Entry], str], Used]:
    """Compiles kernels for an architecture."""

    def compiled(found: list[Entry], arch: str) -> Used:
        used = compile_kernels(found, arch)
        record_property(KERNELS + arch, used)
        return used

    return compiled


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What was compiled, by any process: pytest-xdist sends properties of tests to the first one."""
    for name, used in report.user_properties:
        if name.startswith(KERNELS):
            _compiled.setdefault(name.removeprefix(KERNELS), {}).update(used)  # type: ignore[call-overload]


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = report_path()
    if path and not hasattr(session.config, "workerinput"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_compiled, indent=1, sort_keys=True))
