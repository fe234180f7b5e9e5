"""The profiles that come with the package are found wherever it lies."""

from __future__ import annotations

from pathlib import Path

from edge_agent.profile_files.reading import load
from edge_agent.profile_files.shipped import shipped

FOLDER = Path(__file__).resolve().parents[2] / "device_profiles"


def test_every_profile_of_the_folder_has_the_name_of_its_file() -> None:
    found = shipped()
    assert sorted(found) == sorted(path.stem for path in FOLDER.glob("*.toml"))
    assert [load(path).id for path in found.values()] == list(found)
