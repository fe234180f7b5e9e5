"""The meters of this device that the kernel shows in sysfs: what it draws, in watts.

RAPL, of processors: Documentation/power/powercap/powercap.rst in the Linux sources; a counter in
microjoules that wraps. INA226 and INA3221, of boards: Documentation/hwmon/ina2xx.rst and
ina3221.rst; the first has power in microwatts, the other millivolts and milliamperes of up to three
supplies, of which VDD_IN is the whole board.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent import clock
from edge_agent.telemetry import cgroups

_ROOT: Final = Path("/")
_SAMPLE_S: Final = 0.05
_WHOLE_BOARD: Final = "VDD_IN"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerMeter:
    """Something that tells what the device, or most of it, draws."""

    text: str
    """What it measures and with what, for people."""
    energies: tuple[Path, ...] = ()
    """Files with counters in microjoules that are to be added."""
    powers: tuple[tuple[Path, Path | None], ...] = ()
    """Files with microwatts, or with millivolts and milliamperes, that are to be added."""

    def measure_w(
        self,
        duration_s: float,
        sleep_s: Callable[[float], None] = clock.sleep_s,
        now_s: Callable[[], float] = clock.precise_s,
    ) -> float | None:
        """Mean power over the next `duration_s`; None if it cannot be read any more."""
        if self.energies:
            started_s, before = now_s(), [_number(path) for path in self.energies]
            sleep_s(duration_s)
            took_s, after = now_s() - started_s, [_number(path) for path in self.energies]
            used = [
                _used_joules(path, b, a)
                for path, b, a in zip(self.energies, before, after, strict=True)
            ]
            return None if None in used else sum(filter(None, used)) / took_s
        samples: list[float] = []
        until_s = now_s() + duration_s
        while not samples or now_s() < until_s:
            found = [_watts(*paths) for paths in self.powers]
            if None in found:
                return None
            samples.append(sum(filter(None, found)))
            sleep_s(_SAMPLE_S)
        return sum(samples) / len(samples)


def find_meter(root: Path = _ROOT) -> PowerMeter | None:
    """The meter that sees most of the device: its supply, else all of a platform that RAPL counts,
    else the processors. None if there is none that this user may read."""
    return _board_meter(root) or _rapl_meter(root)


def _board_meter(root: Path) -> PowerMeter | None:
    powers: list[tuple[Path, Path | None]] = []
    names: list[str] = []
    for folder in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        chip = cgroups.text_of(folder / "name").strip()
        if not chip.startswith("ina"):
            continue
        for label in sorted(folder.glob("in*_label")):
            number = label.name.removeprefix("in").removesuffix("_label")
            supply = cgroups.text_of(label).strip()
            pair = folder / f"in{number}_input", folder / f"curr{number}_input"
            if supply == _WHOLE_BOARD and _watts(*pair) is not None:
                return PowerMeter(text=f"the whole board, {chip} at {supply}", powers=(pair,))
        total = folder / "power1_input"
        if _watts(total, None) is not None:
            powers.append((total, None))
            names.append(f"{chip} at {folder.name}")
    return PowerMeter(text=", ".join(names), powers=tuple(powers)) if powers else None


def _rapl_meter(root: Path) -> PowerMeter | None:
    zones = {
        folder: cgroups.text_of(folder / "name").strip()
        for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:*"))
    }
    for kind in ("psys", "package"):
        counters = [
            folder / "energy_uj"
            for folder, name in zones.items()
            if name.startswith(kind) and _number(folder / "energy_uj") is not None
        ]
        if counters:
            what = "the platform" if kind == "psys" else _counted(len(counters))
            return PowerMeter(text=f"{what}, RAPL {kind}", energies=tuple(counters))
    return None


def _counted(processors: int) -> str:
    return "the processor" if processors == 1 else f"{processors} processors"


def _used_joules(path: Path, before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    used = after - before
    if used < 0:
        used += _number(path.parent / "max_energy_range_uj") or 0.0
    return used / 1e6 if used >= 0 else None


def _watts(first: Path, amperes: Path | None) -> float | None:
    power = _number(first)
    if power is None or amperes is None:
        return None if power is None else power / 1e6
    current = _number(amperes)
    return None if current is None else power * current / 1e6


def _number(path: Path) -> float | None:
    try:
        return float(cgroups.text_of(path))
    except ValueError:
        return None
