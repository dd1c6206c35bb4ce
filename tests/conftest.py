from __future__ import annotations

from collections.abc import Iterator

import pytest

from fewbit.ops import cpu

from .samples import ISAS


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set in turn, really forced."""
    if request.param not in cpu.isas():
        pytest.skip(f"{request.param} is not available on this machine")
    with cpu.forced_isa(request.param):
        assert cpu.isa() == request.param
        yield request.param
