"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that it is never there in part, whatever is killed."""
    own = path.with_name(f".{path.name}.{os.getpid()}")
    with open(own, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(own, path)
