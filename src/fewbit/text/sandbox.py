"""The sandbox for chat templates. They come with the model file, so they are untrusted.

Jinja's sandbox keeps templates away from Python's internals. This module bounds their work: loops and calls check the
clock, and operations that make text or numbers grow check the size first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_CHARS = 1 << 24  # of any text that a template makes
MAX_BITS = 1 << 16  # of any number
MAX_SECONDS = 10.0

_deadline: ContextVar[float] = ContextVar("_deadline")
_WIDE = re.compile(r"[0-9]{6}|\*")  # a width in a format string


@contextmanager
def bounded(seconds: float = MAX_SECONDS) -> Iterator[None]:
    """Run templates inside; they are stopped after some seconds."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def tick() -> None:
    """Called at each iteration of a loop and at each call."""
    if time.monotonic() > _deadline.get(float("inf")):
        raise SecurityError("the template takes too long")


def check_size(size: int) -> None:
    """Refuse what would become too large."""
    if size > MAX_CHARS:
        raise SecurityError(f"the template makes more than {MAX_CHARS} characters")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with bounds on work and on size."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, finalize=shown, **options)
        del self.globals["lipsum"]
        self.filters.update(counted=_counted, concatenated=_concatenated)
        self.filters.update({name: _guarded(name, self.filters[name]) for name in _GROWTH if name in self.filters})

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        _Bounds().visit(source)
        return super()._generate(source, *args, **options)

    def call(__self, __context: Context, __obj: Any, *args: Any, **options: Any) -> Any:  # noqa: N805
        tick()
        if isinstance(__obj, LoopContext):
            args = (_counted(args[0]), *args[1:]) if args else args
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and name in _GROWTH:
            check_size(_GROWTH[name](owner, *args, **options))
        return super().call(__context, __obj, *args, **options)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _Bounds(NodeTransformer):
    """Adds filters that check the clock and the size to loops and to `a ~ b`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        node.iter = _filtered(node.iter, "counted")
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "concatenated")


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        tick()
        yield value


def _concatenated(values: list[Any]) -> str:
    texts = [str(shown(value)) for value in values]
    check_size(sum(map(len, texts)))
    return "".join(texts)


def shown(value: Any) -> Any:
    """A value that is about to become text."""
    check_size(_text_size(value, MAX_CHARS))
    return value


def _text_size(value: Any, limit: int) -> int:
    """About how long the text of a value is. Lists may share their parts, so the count stops at the limit."""
    if isinstance(value, str):
        return len(value)
    size, pending = 0, [value]
    while pending and size <= limit:
        item = pending.pop()
        if isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set)):
            pending += item
        size += len(item) if isinstance(item, str) else 16
    return size


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if operator == "%" and isinstance(left, str):
        _check_format(left)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
        if operator in ("*", "**") and bits > MAX_BITS:
            raise SecurityError(f"the template makes a number of more than {MAX_BITS} bits")
    elif operator == "*":
        size = len(left) * right if isinstance(right, int) else len(right) * left if isinstance(left, int) else 0
        check_size(size)
    elif operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
        check_size(len(left) + len(right))


def _check_format(text: str) -> int:
    if _WIDE.search(text):
        raise SecurityError(f"a format string with a width that is too large: {text[:40]!r}")
    return 0


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that looks at the size of what it will make."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0  # the context comes first

    @wraps(function)
    def guarded(*args: Any, **options: Any) -> Any:
        check_size(_GROWTH[name](*args[skipped:], **options))
        return function(*args, **options)

    return guarded


def _size(value: Any) -> int:
    return _text_size(value, MAX_CHARS)


def _joined(first: Any, second: Any = "", *_: Any, **__: Any) -> int:
    """`", ".join(list)` and `list | join(", ")`."""
    counts = [len(part) if isinstance(part, (str, list, tuple, dict, set)) else 1 for part in (first, second)]
    return _size(first) + _size(second) + counts[0] * counts[1]


def _replaced(text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> int:
    return _size(text) + str(text).count(str(old)) * _size(new) if _size(text) <= MAX_CHARS else MAX_CHARS + 1


def _padded(text: Any, width: Any = 80, *_: Any, **__: Any) -> int:
    return max(_size(text), width if isinstance(width, int) else 0)


def _widened(text: Any, width: Any, at: str) -> int:
    """A width that comes at each `at`."""
    times = str(text).count(at) + 1 if _size(text) <= MAX_CHARS else 0
    return _size(text) + times * (width if isinstance(width, int) else _size(width))


_GROWTH: dict[str, Callable[..., int]] = {
    "join": _joined,
    "replace": _replaced,
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
    "expandtabs": lambda text, tabsize=8, **_: _widened(text, tabsize, "\t"),
    "indent": lambda text, width=4, *_, **__: _widened(text, width, "\n"),
    "format": lambda text, *_, **__: _check_format(str(text)),
    "batch": lambda values, count, *_, **__: count,
    "slice": lambda values, count, *_, **__: count,
    "sum": lambda values, attribute=None, start=0: 0 if isinstance(start, (int, float)) else len(values) ** 2,
    "string": _size,
    "pprint": _size,
}
