from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from fewbit.ops import cpu

from .samples import ISAS

# Tests run in the background may be told to ignore Ctrl-C, and the processes that they start would too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set in turn, really forced."""
    if request.param not in cpu.isas():
        pytest.skip(f"{request.param} is not available on this machine")
    with cpu.forced_isa(request.param):
        assert cpu.isa() == request.param
        yield request.param
