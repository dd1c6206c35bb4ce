"""What is done survives any end of a process, and nothing is done twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewbit.errors import PathError
from fewbit.server.batch.journal import Journal
from fewbit.server.batch.lines import Record

FACTS: dict[str, str | int] = {"input": "abc", "created": 5}
RECORDS = [Record(i, 200 if i % 3 else 400, i, 2 * i, b'{"line":%d}' % i) for i in (2, 0, 3, 1)]
WHOLE = b"".join(sorted(one.line + b"\n" for one in RECORDS))


def written(path: Path) -> bytes:
    journal = Journal(path, FACTS)
    for one in RECORDS:
        assert journal.add(one)
    assert not journal.add(RECORDS[0])
    journal.close()
    return path.read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400), flipped=st.none() | st.integers(0, 400))
def test_a_torn_file_goes_on(tmp_path: Path, cut: int, flipped: int | None) -> None:
    path, out = tmp_path / "out.partial", tmp_path / "out"
    path.unlink(missing_ok=True)
    data = bytearray(written(path))
    header = data.index(b"\n") + 1
    if flipped is not None and header <= flipped < len(data):
        data[flipped] ^= 1
    path.write_bytes(data[:cut])
    journal = Journal(path, {**FACTS, "created": 9})
    assert journal.created == (5 if cut >= header else 9)
    kept = {one.index for one in RECORDS if one.index in journal}
    assert len(kept) == len(journal)
    for one in RECORDS:
        assert journal.add(one) == (one.index not in kept)
    journal.write(out, 4)
    assert out.read_bytes() == WHOLE
    assert journal.totals == (2, 2, 6, 12)
    journal.remove()
    assert not path.exists()


def test_only_what_is_wanted_is_written(tmp_path: Path) -> None:
    written(tmp_path / "p")
    journal = Journal(tmp_path / "p", FACTS)
    journal.write(tmp_path / "errors", 4, lambda record: record.status != 200)
    assert (tmp_path / "errors").read_bytes() == b'{"line":0}\n{"line":3}\n'
    assert not journal.add(RECORDS[1])
    journal.close()


def test_another_job_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "p")
    with pytest.raises(PathError, match="another job \\(input 'abc' instead of 'other'\\)"):
        Journal(tmp_path / "p", {**FACTS, "input": "other"})
    (tmp_path / "q").write_text("something else\n")
    with pytest.raises(PathError, match="not a checkpoint"):
        Journal(tmp_path / "q", FACTS)
    assert (tmp_path / "q").read_text() == "something else\n"


def test_two_processes_cannot_have_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "p", FACTS)
    with pytest.raises(PathError, match="another process"):
        Journal(tmp_path / "p", FACTS)
    journal.close()
    Journal(tmp_path / "p", FACTS).close()
