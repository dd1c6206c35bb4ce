from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
torch.set_num_threads(1)
