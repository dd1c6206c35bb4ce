"""Types of options of benchmarks: counts, lists of them, and shapes."""

from __future__ import annotations

import argparse


def count_option(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def shape_option(text: str) -> tuple[int, int]:
    n, by, k = text.lower().partition("x")
    if not by:
        raise argparse.ArgumentTypeError(f"a shape is rows x columns, such as 4096x4096, not {text!r}")
    return count_option(n), count_option(k)


def batch_option(text: str) -> list[int]:
    return [count_option(part) for part in text.split(",")]
