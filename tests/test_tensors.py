"""What models declare of tensors."""

from __future__ import annotations

import pytest

from edge_agent.tensors import size_name


@pytest.mark.parametrize("text", ["", "?", "*", "-1", "None", "??", "-", "42"])
def test_what_names_no_size(text: str) -> None:
    assert size_name(text) is None


@pytest.mark.parametrize("text", ["N", "batch", "_", "unk__3", "past + 1", "p2o.Dim.0"])
def test_what_names_a_size(text: str) -> None:
    assert size_name(text) == text
