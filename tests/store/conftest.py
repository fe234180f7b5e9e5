"""A disk that is easily filled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disks import small_disk as small_disk_of

DISK_BYTES = 256 << 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 256 KiB."""
    with small_disk_of(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk
