"""What heat, power limits and the battery leave, from made-up files of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.telemetry.condition import battery_fraction, speed_fraction


def policy(root: Path, number: int, allowed: str, built: str, cores: str) -> None:
    folder = root / f"sys/devices/system/cpu/cpufreq/policy{number}"
    folder.mkdir(parents=True)
    (folder / "scaling_max_freq").write_text(f"{allowed}\n")
    (folder / "cpuinfo_max_freq").write_text(f"{built}\n")
    (folder / "related_cpus").write_text(f"{cores}\n")


def test_without_frequencies_nothing_is_known(tmp_path: Path) -> None:
    assert speed_fraction(tmp_path) is None
    policy(tmp_path, 0, "", "1800000", "0 1")
    policy(tmp_path, 2, "900000", "0", "2")
    assert speed_fraction(tmp_path) is None


def test_a_processor_that_may_reach_all_it_was_built_for_is_at_full_speed(tmp_path: Path) -> None:
    policy(tmp_path, 0, "1800000", "1800000", "0 1 2 3")
    # As with a boost that the maker does not count.
    policy(tmp_path, 4, "2500000", "2400000", "4")
    assert speed_fraction(tmp_path) == 1.0


def test_limits_count_by_the_cores_that_have_them(tmp_path: Path) -> None:
    policy(tmp_path, 0, "1800000", "1800000", "0 1 2")
    policy(tmp_path, 3, "1200000", "2400000", "3")
    assert speed_fraction(tmp_path) == pytest.approx(3.5 / 4)


def test_a_battery_is_a_share_or_there_is_none() -> None:
    found = battery_fraction()
    assert found is None or 0 <= found <= 1
