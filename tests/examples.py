"""How many examples hypothesis tries in tests whose examples take long."""

from __future__ import annotations

import os

from hypothesis import settings


def examples(usual: int, full: int) -> int:
    """As many as FEWBIT_EXAMPLES says; else `full` with --all and `usual` without."""
    is_full = settings.default is not None and settings.default.max_examples == settings.get_profile("all").max_examples
    return int(os.environ.get("FEWBIT_EXAMPLES", full if is_full else usual))
