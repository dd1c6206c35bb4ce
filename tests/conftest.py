from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from zlib import crc32

import pytest
from hypothesis import settings

from fewbit.ops import cpu

from .samples import ISAS

# Tests run in the background may be told to ignore Ctrl-C, and the processes that they start would too.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("default", max_examples=40, deadline=None)
settings.register_profile("all", max_examples=300, deadline=None)

SAMPLE = 2  # cases with each value of each parameter, on instruction sets that are not the best


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run every case of every test")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("all" if config.getoption("--all") else "default")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """No test of clusters but with `-m cluster`. Without --all: none that is exhaustive, and of those that force an
    instruction set a sample."""
    usual = items
    if "cluster" not in config.getoption("-m"):
        usual = [item for item in items if not item.get_closest_marker("cluster")]
    if not config.getoption("--all"):
        usual = sample([item for item in usual if not item.get_closest_marker("exhaustive")])
    kept = {item.nodeid for item in usual}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """All cases on the best instruction set; on the others so many that each value of each parameter is there."""
    best, seen, kept = cpu.isas()[0], Counter[tuple[str, ...]](), []
    for item in sorted(items, key=lambda item: crc32(item.nodeid.encode())):  # mixed, and the same each time
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        forced = [value for value in params.values() if isinstance(value, str) and value in (*ISAS, "numpy")]
        isa, test = forced[0] if forced else best, item.nodeid.partition("[")[0]
        values = [(test, isa, name, str(value)) for name, value in params.items()]
        if isa == best or min(seen[value] for value in values) < SAMPLE:
            kept.append(item)
            seen.update(values)
    return kept


@pytest.fixture(params=[name for name in ISAS if name in cpu.isas()])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """One instruction set after the other, really forced."""
    with cpu.forced_isa(request.param):
        assert cpu.isa() == request.param
        yield request.param
