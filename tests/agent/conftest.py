"""Devices that meet, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.made_peers import Devices, devices


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Devices]:
    with devices(tmp_path) as found:
        yield found
