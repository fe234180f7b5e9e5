"""Children that give way to serving."""

from __future__ import annotations

import os

from edge_agent.agent.processes import NICENESS, Child
from edge_agent.engine import background


def test_a_child_that_gives_way_does_so_as_much_as_other_work_beside_serving() -> None:
    child = Child("edge_agent.worker")
    try:
        child.give_way()
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == background.NICENESS == NICENESS
    finally:
        child.end()
