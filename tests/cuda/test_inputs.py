"""The integers of a step: rows that are padded belong to sequences of length 0."""

from __future__ import annotations

import numpy as np
import pytest

from fewbit.arrays import Ints
from fewbit.cache.cache import Cache
from fewbit.cache.layout import make_layout
from fewbit.cache.store import HostStore
from fewbit.ops.cuda.inputs import InputLayout
from fewbit.ops.specs import AttentionSpec


@pytest.mark.parametrize("counts", [[1], [3, 2], [1, 5], [1, 1, 1, 1, 1, 1, 1, 1], [8], [4, 1, 1, 2]])
def test_padded_rows(counts: list[int]) -> None:
    size = 8
    cache = Cache(HostStore(make_layout([AttentionSpec(1, 16, 16)]), pages=[16]))
    view = cache.reserve([(cache.new(), count) for count in counts])
    n, s = sum(counts), len(counts)
    layout = InputLayout(size, size, size, (size,), 16, 512)
    out = np.full(layout.total, -7, np.int32)
    layout.pack(out, np.arange(n, dtype=np.int32), view, np.arange(n, dtype=np.int32))

    def part(name: str) -> Ints:
        return out[layout.offsets[name] :][: layout.sizes[name]]

    starts, lengths, owners = part("q_starts"), part("lengths"), part("sequences")
    assert starts[0] == 0
    assert starts[-1] == size
    assert (np.diff(starts) >= 0).all()
    assert np.diff(starts)[:s].tolist() == counts
    np.testing.assert_array_equal(owners, np.repeat(np.arange(size), np.diff(starts)))
    assert lengths[:s].tolist() == counts
    assert not lengths[s:].any()
    assert (part("slots0")[n:] == -1).all()
