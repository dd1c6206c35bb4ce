from __future__ import annotations

from pathlib import Path

import pytest

from .tiny import write_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a small model."""
    return str(write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf"))


@pytest.fixture
def no_template(tmp_path: Path) -> str:
    """The path of a small model without a chat template."""
    return str(write_tiny(tmp_path / "plain.gguf", template=None))
