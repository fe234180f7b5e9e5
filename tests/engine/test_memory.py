"""Memory that is not given to what nobody has checked."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from edge_agent.engine.memory import bounded_memory, enough_for

MIB = 1 << 20


def test_no_more_memory_than_was_set_is_given_and_afterwards_all_of_it() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with bounded_memory(256 * MIB):
        np.zeros(64 * MIB, np.uint8)
        with pytest.raises(MemoryError):
            np.zeros(512 * MIB, np.uint8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    np.zeros(512 * MIB, np.uint8)


def test_sound_models_have_room_for_several_copies_of_themselves() -> None:
    assert enough_for(100 * MIB) > 8 * 100 * MIB
