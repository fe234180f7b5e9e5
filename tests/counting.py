"""How much Python a piece of code executes: a measure of work that no other process disturbs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def lines_of(action: Callable[[], object]) -> int:
    """The number of lines that `action` executes, each as often as it does, and of its calls.

    What a library does in one call in C counts as one line.
    """
    count = 0

    def trace(*_: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count
