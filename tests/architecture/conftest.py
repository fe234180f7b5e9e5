"""The source of the project as trees, for the tests of this folder alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.architecture.parsed import nodes_of, tree_of


@pytest.fixture(scope="package", autouse=True)
def _no_search_goes_through_all_nodes() -> Iterator[None]:
    """Half a million of them, which the search for garbage would go through again and again: here,
    and, if they were kept, in all tests after these."""
    gc.disable()
    yield
    tree_of.cache_clear()
    nodes_of.cache_clear()
    gc.enable()
