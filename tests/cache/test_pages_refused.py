"""Pages: what is refused, with a sentence, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fewbit.cache.pages import Pages
from fewbit.errors import DataError, DtypeError, FewbitError, OutOfPages, PositionError, ShapeError, UnknownId

from .test_pages import extend, make_pages, state

REFUSED: list[tuple[Callable[[Pages, int], object], type[FewbitError], str]] = [
    (lambda pages, a: extend(pages, 99), UnknownId, "no sequence 99"),
    (lambda pages, a: pages.extend([(a, 1), (a, 1)]), FewbitError, "given twice: 1, 1"),
    (lambda pages, a: pages.new([1], namespace=3), DtypeError, "namespace must be str, not int"),
    (lambda pages, a: pages.commit(-1, [1]), UnknownId, "no sequence -1"),
    (lambda pages, a: pages.unpin(a), UnknownId, "no pin 1"),
    (lambda pages, a: pages.free("a"), DtypeError, "a sequence must be an integer, not str"),
    (lambda pages, a: pages.free([a]), DtypeError, "not list"),
    (lambda pages, a: pages.length(float(a)), DtypeError, "not float"),
    (lambda pages, a: pages.unpin(None), DtypeError, "a pin must be an integer"),
    (lambda pages, a: extend(pages, a, -1), PositionError, "a number of tokens must be from 0 to 2147483647, got -1"),
    (lambda pages, a: extend(pages, a, 1.0), DtypeError, "a number of tokens must be an integer, not float"),
    (lambda pages, a: extend(pages, a, [1, 2]), DtypeError, "not list"),
    (lambda pages, a: extend(pages, a, 10**9), OutOfPages, "free or evictable: 7"),
    (
        lambda pages, a: extend(pages, a, 10**30),
        PositionError,
        "from 0 to 2147483647, got 1000000",
    ),
    (lambda pages, a: pages.truncate(a, 4), PositionError, "sequence 1 cannot be cut to 4 tokens: it has 3"),
    (lambda pages, a: pages.truncate(a, -1), PositionError, "from 0 to 2147483647, got -1"),
    (lambda pages, a: pages.fork(a, 4), PositionError, "sequence 1 cannot be cut to 4 tokens: it has 3"),
    (lambda pages, a: pages.fork(a, 1.5), DtypeError, "a number of tokens must be an integer, not float"),
    (lambda pages, a: pages.commit(a, [1, 2, 3, 4]), PositionError, "has 3 tokens to commit, got 4"),
    (lambda pages, a: pages.commit(a, [1, 2**32]), DataError, "0 to"),
    (lambda pages, a: pages.commit(a, [-1]), DataError, "0 to"),
    (lambda pages, a: pages.commit(a, [1.0]), DtypeError, "tokens must be integers"),
    (lambda pages, a: pages.commit(a, 5), DtypeError, "tokens must be integers"),
    (lambda pages, a: pages.new("text"), DtypeError, "tokens must be integers"),
    (lambda pages, a: pages.new(b"12345678"), DtypeError, "not bytes"),
    (lambda pages, a: pages.lookup([None]), DtypeError, "tokens must be integers"),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED)
def test_what_is_refused_changes_nothing(
    call: Callable[[Pages, int], object], kind: type[FewbitError], message: str
) -> None:
    pages = make_pages(8, page_tokens=4)
    a = pages.new()
    extend(pages, a, 3)
    before = state(pages)
    with pytest.raises(kind, match=message):
        call(pages, a)
    assert state(pages) == before


def test_ids_are_not_used_again() -> None:
    pages = make_pages(8)
    a = pages.new()
    pin = pages.pin(a)
    pages.free(a)
    pages.unpin(pin)
    assert pages.new() not in (a, pin)
    for call in (pages.free, pages.fork, pages.table, pages.unpin):
        with pytest.raises(UnknownId):
            call(a)
    with pytest.raises(UnknownId):
        pages.unpin(pin)


@pytest.mark.parametrize("sizes", [{"total": 0}, {"total": -1}, {"total": 1, "page_tokens": 0}])
def test_sizes_that_make_no_sense(sizes: dict[str, int]) -> None:
    with pytest.raises(ShapeError, match="at least 1"):
        make_pages(**sizes)
    with pytest.raises(DtypeError):
        make_pages("8")  # type: ignore[arg-type]
