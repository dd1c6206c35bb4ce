"""`fewbit serve --replicas`: its options. `tests/cluster` runs it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fewbit.cli import main

WRONG = [
    (["--max-replicas", "2"], "--max-replicas needs --replicas"),
    (["--address", "auto"], "--address needs --replicas"),
    (["--replicas", "0"], "0 is not in the range"),
    (["--replicas", "3", "--max-replicas", "2"], "--max-replicas must be at least 3, the number of --replicas, got 2"),
    (["--replicas", "2", "--allow-changes"], "--allow-changes does not go with --replicas"),
    (["--replicas", "2", "--cache-dir", "x"], "--cache-dir does not go with --replicas"),
    (["--replicas", "2", "--max-connections", "9"], "--max-connections does not go with --replicas"),
    (["--replicas", "2", "--port", "0"], "--replicas needs a --port, got 0"),
    (["--replicas", "2", "--host", "0.0.0.0"], "other machines could use this server without a key"),
]


@pytest.mark.parametrize(("args", "message"), WRONG)
def test_options_that_do_not_go_together(args: list[str], message: str) -> None:
    found = CliRunner().invoke(main, ["serve", "tiny.gguf", *args])
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())
