"""Cases of a test that only longer runs take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def marked_long(cases: Iterable[Any]) -> list[Any]:
    """Each of the values of one parameter, for `tools/test --long`."""
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]


def marked_many(cases: Iterable[Any]) -> list[Any]:
    """Each of the values of one parameter, for `tools/test --all`."""
    return [pytest.param(case, marks=pytest.mark.many) for case in cases]
