"""The profiles of real devices that come with the package, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "device_profiles"
"""In the source a link to the folder of that name beside the package; installed, the files."""


def shipped() -> Mapping[str, Path]:
    """Where each one lies, in the order of their names."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
