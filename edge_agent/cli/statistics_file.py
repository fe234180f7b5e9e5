"""What devices are like at present, from a file: `plan --stats`.

TOML, or JSON of the same form; every key may be left out:

    [lab]                        # a device of --devices
    load = 0.5                   # share of the processor that others use, 0 to 1
    free_memory = "512 MiB"
    speed = 0.8                  # share of the full speed that heat or power limits leave
    battery = 0.15               # charge left, 0 to 1; below 0.2 it does no work for others
    charging = false             # if true, it does all the same
    slowdown = { cpu = 1.4 }     # observed time over predicted time, of each unit
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from edge_agent.devices import DeviceId, UnitId
from edge_agent.errors import UsageError
from edge_agent.literals import unreadable
from edge_agent.problems import DeviceStatistics
from edge_agent.profile_files.fields import Fields, Table, is_number
from edge_agent.quantities import SIZE, parse

MOST_FILE_BYTES = 1 << 20
_LEAST_SPEED = 1e-6
"""Beyond that it is no measurement: the device is as good as gone."""
_KEYS = ("load", "free_memory", "speed", "battery", "charging", "slowdown")


def load_statistics(
    path: Path, units: Mapping[DeviceId, Collection[UnitId]]
) -> tuple[DeviceStatistics, ...]:
    """What the file says of the devices that have these units.

    Raises:
        UsageError: naming the file, the key, what it got, what it wants and what to do.
    """
    return decode_statistics(_read(path), str(path), units)


def decode_statistics(
    text: str, file: str, units: Mapping[DeviceId, Collection[UnitId]]
) -> tuple[DeviceStatistics, ...]:
    """As `load_statistics`, of a text; `file` is what errors call it, and JSON if it ends so."""
    is_json = file.endswith(".json")
    try:
        table = _json(text, file) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        word = "JSON" if is_json else "TOML"
        raise UsageError(
            f"{file}: is not valid {word}: {unreadable(error)}; correct it there"
        ) from error
    if not isinstance(table, dict):
        raise UsageError(f"{file}: got no table, want one with a table for each device")
    reader = _Reader(file)
    reader.check_keys("", table, units)
    return tuple(
        reader.device(DeviceId(name), value, units[DeviceId(name)]) for name, value in table.items()
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            found = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"--stats {path}: cannot be read: {error.strerror}; name a TOML or JSON file"
        ) from error
    if len(found) > MOST_FILE_BYTES:
        raise UsageError(f"--stats {path}: got more than {MOST_FILE_BYTES >> 20} MiB, want less")
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"--stats {path}: is not UTF-8; save it as UTF-8 text") from error


def _json(text: str, file: str) -> object:
    """A JSON document, in which no table has a key twice, as TOML has it."""

    def table_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table: dict[str, object] = {}
        for key, value in pairs:
            if key in table:
                raise UsageError(f'{file}: key "{key}": is given twice in one table; leave one out')
            table[key] = value
        return table

    found: object = json.loads(text, object_pairs_hook=table_of)
    return found


class _Reader(Fields):
    def device(
        self, device: DeviceId, value: object, units: Collection[UnitId]
    ) -> DeviceStatistics:
        key = str(device)
        table = self.table(key, value)
        self.check_keys(f"{key}.", table, _KEYS)
        battery = self._share(f"{key}.battery", table) if "battery" in table else None
        is_charging = self.flag(f"{key}.charging", table.get("charging", False))
        if is_charging and battery is None:
            self.missing(f"{key}.battery", "the charge left, 0 to 1, beside charging")
        free = self._size(f"{key}.free_memory", table) if "free_memory" in table else None
        speed = self._share(f"{key}.speed", table) if "speed" in table else 1.0
        if speed < _LEAST_SPEED:
            least = f"at least {_LEAST_SPEED:g}; leave the device out of --devices"
            self.refuse(f"{key}.speed", speed, least)
        return DeviceStatistics(
            device=device,
            load_fraction=self._share(f"{key}.load", table) if "load" in table else 0.0,
            free_memory_bytes=free,
            speed_fraction=speed,
            battery_fraction=None if is_charging else battery,
            slowdowns=self._slowdowns(f"{key}.slowdown", table.get("slowdown", {}), units),
        )

    def _share(self, key: str, table: Table) -> float:
        number = table[key.rsplit(".", 1)[-1]]
        if not is_number(number) or not 0 <= number <= 1:
            self.refuse(key, number, "a number from 0 to 1")
        return float(number)

    def _size(self, key: str, table: Table) -> int:
        value = table[key.rsplit(".", 1)[-1]]
        if not isinstance(value, str):
            self.refuse(key, value, f'{SIZE.name} with their unit, as in "{SIZE.example}"')
        try:
            return int(parse(value, SIZE))
        except ValueError as error:
            raise UsageError(f"{self.file}: key {key}: {error}") from None

    def _slowdowns(
        self, key: str, value: object, units: Collection[UnitId]
    ) -> tuple[tuple[UnitId, float], ...]:
        table = self.table(key, value)
        self.check_keys(f"{key}.", table, units)
        for unit, number in table.items():
            if not is_number(number) or not _LEAST_SPEED <= number <= 1 / _LEAST_SPEED:
                wanted = f"observed over predicted time, {_LEAST_SPEED:g} to {1 / _LEAST_SPEED:g}"
                self.refuse(f"{key}.{unit}", number, wanted)
        return tuple(
            (UnitId(unit), float(number)) for unit, number in table.items() if is_number(number)
        )
