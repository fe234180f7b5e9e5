"""The error tree: codes and exit codes that users and programs rely on."""

from __future__ import annotations

import pytest

from edge_agent import errors
from edge_agent.errors import EdgeAgentError, error_from_code

CODES = {
    "error": 1,
    "bad-request": 2,
    "unknown-model": 3,
    "input-mismatch": 2,
    "usage": 2,
    "model-refused": 4,
    "model-quarantined": 5,
    "busy": 6,
    "deadline-exceeded": 7,
    "agent-unavailable": 8,
    "already-running": 9,
    "runtime-unavailable": 10,
    "run-failed": 11,
    "storage": 12,
    "protocol": 13,
    "other-version": 13,
    "worker-lost": 14,
    "builder-lost": 15,
    "unknown-peer": 16,
    "peer-refused": 17,
    "peer-lost": 18,
}
TREE = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, EdgeAgentError)]


def test_codes_and_exit_codes_are_as_documented() -> None:
    assert {e.code: e.exit_code for e in TREE} == CODES


@pytest.mark.parametrize("kind", TREE)
def test_an_error_comes_back_from_its_code(kind: type[EdgeAgentError]) -> None:
    error = error_from_code(kind.code, "what happened")
    assert type(error) is kind
    assert str(error) == "what happened"


def test_an_unknown_code_is_an_error_all_the_same() -> None:
    assert type(error_from_code("of-tomorrow", "x")) is EdgeAgentError


def test_the_drawing_of_the_tree_names_every_class() -> None:
    assert errors.__doc__ is not None
    assert [e.__name__ for e in TREE if e.__name__ not in errors.__doc__] == []
