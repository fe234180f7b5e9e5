"""Device profiles from TOML."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from edge_agent.devices import Layout, UnitId, UnitKind
from edge_agent.errors import UsageError
from edge_agent.hardware import (
    DeviceProfile,
    MeasuredTimes,
    NetworkProfile,
    Source,
    Sourced,
    SourceKind,
    UnitProfile,
)
from edge_agent.literals import literal, unreadable
from edge_agent.profile_files.fields import Fields, Table, choices_of
from edge_agent.profiles import HOST, HOST_UNIT, Configuration, SegmentTimes
from edge_agent.quantities import BANDWIDTH, DURATION, PACE, POWER, RATE, SIZE
from edge_agent.subgraphs import ModelId
from edge_agent.summaries import Arithmetic, OperatorClass
from edge_agent.tensors import Shape, TensorName

VERSION = 1
MOST_FILE_BYTES = 16 << 20
MOST_CORES = 65_536

_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_KEY: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MODEL_ID: Final = re.compile(r"[0-9a-f]{64}")
_NETWORK = ("send", "receive", "encrypted_send", "encrypted_receive")
_ONLY_OF_A_CPU = ("cores", "threads", "core_peak", "core_bandwidth")
_UNIT_KEYS = (
    *("kind", "cores", "peak", "core_peak", "bandwidth", "core_bandwidth", "launch", "operator"),
    *("busy", "idle", "memory", "border", "layouts", "threads", "takes", "refuses", "efficiency"),
)
_LATENCY_KEYS = (
    *("model", "source", "starts", "shapes", "unit", "layout", "threads", "instances"),
    *("falls_back", "is_half", "segment_s", "overhead_s", "border_s_per_byte", "turn_s_per_byte"),
    *("error_fraction", "is_divisible", "refused"),
)
_MOST = {
    "overhead_s": DURATION.most,
    "border_s_per_byte": PACE.most,
    "turn_s_per_byte": PACE.most,
    "error_fraction": 1000.0,
}
"""Of numbers of a [[latency]] entry."""
_DEFAULT_LAYOUTS = {
    UnitKind.CPU: (Layout.NCHW, Layout.BLOCKED),
    UnitKind.GPU: (Layout.NATIVE,),
    UnitKind.NPU: (Layout.NATIVE,),
}


def load(path: Path) -> DeviceProfile:
    """The device profile in a file.

    Raises:
        UsageError: naming the file, the key, what it got, what it wants and what to do.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{path}: is a folder, want a device profile (a .toml file)")
        with path.open("rb") as file:
            found = file.read(MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such file, want a device profile; `edge-agent devices --export FILE` "
            "writes that of this device"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if len(found) > MOST_FILE_BYTES:
        raise UsageError(
            f"{path}: got more than {MOST_FILE_BYTES >> 20} MiB, want a device profile of less; "
            "take [[latency]] entries out"
        )
    try:
        text = found.decode()
    except UnicodeDecodeError as error:
        line = found[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}: line {line} is not UTF-8; save it as UTF-8 text") from error
    return decode(text, str(path))


def decode(text: str, file: str) -> DeviceProfile:
    """The device profile that a text describes; `file` is what errors call it.

    Raises: as `load`.
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{file}: is not valid TOML: {unreadable(error)}; correct it there"
        ) from error
    return _Reader(file).profile(table)


class _Reader(Fields):
    def profile(self, table: Table) -> DeviceProfile:
        if "version" not in table:
            self.missing("version", f"{VERSION}")
        if table["version"] != VERSION or isinstance(table["version"], bool):
            self.refuse(
                "version", table["version"], f"{VERSION}, the only one this edge-agent knows"
            )
        known = ("version", "id", "name", "sources", "memory", "network", "power", "units")
        self.check_keys("", table, (*known, "latency"))
        self.sources = {
            key: self._source(key, value)
            for key, value in self.table("sources", table.get("sources", {})).items()
        }
        memory = self.table("memory", self.required("memory", table, "a table, as [memory]"))
        self.check_keys("memory.", memory, ("size", "available"))
        power = self.table("power", table.get("power", {}))
        self.check_keys("power.", power, ("idle",))
        units = self.table("units", self.required("units", table, "a table, as [units.cpu]"))
        if not units:
            self.refuse("units", units, "a table for each unit, as [units.cpu]")
        found = {name: self._unit(name, value) for name, value in units.items()}
        profile = DeviceProfile(
            id=self.text("id", table, _ID, "1 to 64 of a-z 0-9 -"),
            name=self.text("name", table),
            sources=tuple(self.sources.values()),
            memory_bytes=self.needed("memory.size", memory, SIZE),
            available_bytes=self.optional("memory.available", memory, SIZE),
            network=self._network(self.table("network", table.get("network", {}))),
            idle_w=self.optional("power.idle", power, POWER),
            units=tuple(found.values()),
            latency=self._latency(table.get("latency", []), found),
        )
        self._check_whole(profile, table)
        return profile

    def _check_whole(self, profile: DeviceProfile, table: Table) -> None:
        size, available = profile.memory_bytes.value, profile.available_bytes
        if available is not None and available.value > size:
            most = literal(_given(table, "memory.size"))
            got = _given(table, "memory.available")
            self.refuse("memory.available", got, f"at most memory.size, {most}")
        for unit in profile.units:
            key, idle_w = f"units.{unit.id}", unit.idle_w or profile.idle_w
            if unit.busy_w is None:
                continue
            if idle_w is None:
                raise UsageError(
                    f"{self.file}: key {key}.busy: says nothing without what is drawn when idle; "
                    "add [power] idle"
                )
            if unit.busy_w.value < idle_w.value:
                of = key if unit.idle_w is not None else "power"
                least = literal(_given(table, f"{of}.idle"))
                got = _given(table, f"{key}.busy")
                self.refuse(f"{key}.busy", got, f"at least {of}.idle, {least}")

    def _source(self, key: str, value: object) -> Source:
        where = f"sources.{key}"
        if not _KEY.fullmatch(key):
            self.refuse("sources", key, "keys of 1 to 64 of a-z 0-9 - _")
        table = self.table(where, value)
        self.check_keys(f"{where}.", table, ("text", "url", "date", "kind"))
        date = self.required(f"{where}.date", table, "a date, as 2026-11-29")
        if not isinstance(date, datetime.date) or isinstance(date, datetime.datetime):
            self.refuse(f"{where}.date", date, "a date without quotes, as 2026-11-29")
        kind = self.required(f"{where}.kind", table, choices_of(SourceKind))
        return Source(
            key=key,
            text=self.text(f"{where}.text", table),
            url=self.text(f"{where}.url", table) if "url" in table else "",
            date=date,
            kind=self.choice(f"{where}.kind", kind, SourceKind),
        )

    def _network(self, table: Table) -> NetworkProfile:
        self.check_keys("network.", table, _NETWORK)
        found = {
            f"{key}_s_per_byte": self.optional(f"network.{key}", table, PACE) for key in _NETWORK
        }
        return NetworkProfile(**found)

    def _unit(self, name: str, value: object) -> UnitProfile:
        key = f"units.{name}"
        if not _KEY.fullmatch(name) or name == HOST:
            self.refuse("units", name, f"names of 1 to 64 of a-z 0-9 - _, and not {HOST}")
        table = self.table(key, value)
        self.check_keys(f"{key}.", table, _UNIT_KEYS)
        kind_value = self.required(f"{key}.kind", table, choices_of(UnitKind))
        kind = self.choice(f"{key}.kind", kind_value, UnitKind)
        is_host = kind is UnitKind.CPU
        if is_host is not (name == HOST_UNIT):
            want = f"[units.{HOST_UNIT}] to be of kind CPU, and no other"
            self.refuse(f"{key}.kind", str(kind), want)
        for wrong in [k for k in _ONLY_OF_A_CPU if k in table and not is_host]:
            raise UsageError(f"{self.file}: key {key}.{wrong}: only a CPU has it; leave it out")
        cores = self.count(f"{key}.cores", table, most=MOST_CORES) if is_host else None
        unit = UnitProfile(
            id=UnitId(name),
            kind=kind,
            cores=cores,
            operations_per_s=self._peaks(f"{key}.peak", table),
            core_operations_per_s=(
                self._peaks(f"{key}.core_peak", table) if "core_peak" in table else ()
            ),
            bandwidth_bytes_per_s=self.needed(f"{key}.bandwidth", table, BANDWIDTH, above=True),
            core_bandwidth_bytes_per_s=self.optional(
                f"{key}.core_bandwidth", table, BANDWIDTH, above=True
            ),
            launch_s=self.needed(f"{key}.launch", table, DURATION),
            operator_s=self.needed(f"{key}.operator", table, DURATION),
            busy_w=self._busy(f"{key}.busy", table),
            idle_w=self.optional(f"{key}.idle", table, POWER),
            memory_bytes=self.optional(f"{key}.memory", table, SIZE),
            border_s_per_byte=self.optional(f"{key}.border", table, PACE),
            layouts=self.chosen(f"{key}.layouts", table, Layout) or _DEFAULT_LAYOUTS[kind],
            threads=self._threads(f"{key}.threads", table, cores),
            takes=self.chosen(f"{key}.takes", table, Arithmetic),
            refuses=self._operators(f"{key}.refuses", table),
            efficiencies=self._efficiencies(f"{key}.efficiency", table),
        )
        self._check_peaks(key, unit, table)
        return unit

    def _busy(self, key: str, table: Table) -> Sourced | None:
        found = self.optional(key, table, POWER)
        if found is not None and not found.value:
            want = "watts above 0; leave it out where it is not known what is drawn"
            self.refuse(key, _given(table, "busy"), want)
        return found

    def _check_peaks(self, key: str, unit: UnitProfile, table: Table) -> None:
        peaks = dict(unit.operations_per_s)
        if unit.takes and not any(peak in peaks for peak in unit.takes):
            want = "a peak for one of what it takes"
            self.refuse(f"{key}.peak", ", ".join(peaks), f"{want}: {', '.join(unit.takes)}")
        for arithmetic, one in unit.core_operations_per_s:
            if arithmetic not in peaks or one.value > peaks[arithmetic].value:
                got = _given(table, f"core_peak.{arithmetic}")
                self.refuse(f"{key}.core_peak.{arithmetic}", got, "at most that of all, in peak")
        one_core = unit.core_bandwidth_bytes_per_s
        if one_core is not None and one_core.value > unit.bandwidth_bytes_per_s.value:
            got = _given(table, "core_bandwidth")
            self.refuse(f"{key}.core_bandwidth", got, "at most that of all, in bandwidth")

    def _peaks(self, key: str, table: Table) -> tuple[tuple[Arithmetic, Sourced], ...]:
        example = f'as {key.rsplit(".", 1)[-1]}.float32 = {{ value = "{RATE.example}", … }}'
        found = self.table(key, self.required(key, table, f"a rate, {example}"))
        self.check_keys(f"{key}.", found, [str(a) for a in Arithmetic])
        if not found:
            self.refuse(key, found, f"a rate for at least one of {choices_of(Arithmetic)}")
        return tuple(
            (arithmetic, self.needed(f"{key}.{arithmetic}", found, RATE, above=True))
            for arithmetic in Arithmetic
            if arithmetic in found
        )

    def _efficiencies(self, key: str, table: Table) -> tuple[tuple[OperatorClass, Sourced], ...]:
        found = self.table(key, table.get("efficiency", {}))
        self.check_keys(f"{key}.", found, [str(kind) for kind in OperatorClass])
        return tuple(
            (kind, self.share(f"{key}.{kind}", found[kind]))
            for kind in OperatorClass
            if kind in found
        )

    def _threads(self, key: str, table: Table, cores: Sourced | None) -> tuple[int, ...]:
        if cores is None:
            return ()
        most = int(cores.value)
        found = self.wholes(key, table.get("threads", sorted({1, most})), least=1)
        if not found or list(found) != sorted(set(found)) or found[-1] > most:
            self.refuse(key, list(found), f"thread counts in ascending order, up to {most} cores")
        return found

    def _operators(self, key: str, table: Table) -> tuple[str, ...]:
        found = table.get("refuses", [])
        if not isinstance(found, list) or not all(isinstance(x, str) and x for x in found):
            self.refuse(key, found, 'a list of operators, as ["Resize"]')
        return tuple(found)

    def _latency(
        self, value: object, units: Mapping[str, UnitProfile]
    ) -> tuple[MeasuredTimes, ...]:
        if not isinstance(value, list):
            self.refuse("latency", value, "tables, as [[latency]]")
        found = tuple(self._times(f"latency[{at}]", entry, units) for at, entry in enumerate(value))
        seen = [(t.model, t.starts, t.shapes, t.times.configuration) for t in found]
        for at, one in enumerate(seen):
            if one in seen[:at]:
                raise UsageError(
                    f"{self.file}: key latency[{at}]: is there twice, as latency"
                    f"[{seen.index(one)}]; leave one out"
                )
        return found

    def _times(self, key: str, value: object, units: Mapping[str, UnitProfile]) -> MeasuredTimes:
        table = self.table(key, value)
        self.check_keys(f"{key}.", table, _LATENCY_KEYS)
        source = self.required(f"{key}.source", table, "the key of a source")
        starts = self.wholes(f"{key}.starts", self.required(f"{key}.starts", table, "numbers"))
        if not starts or starts[0] != 0 or list(starts) != sorted(set(starts)):
            self.refuse(f"{key}.starts", list(starts), "ascending numbers from 0 on")
        unit = self.text(f"{key}.unit", table)
        if unit not in units:
            self.refuse(f"{key}.unit", unit, f"one of {', '.join(units)}")
        refused = self.wholes(f"{key}.refused", table.get("refused", []))
        if list(refused) != sorted(set(refused)) or any(at >= len(starts) for at in refused):
            want = f"ascending numbers below {len(starts)}"
            self.refuse(f"{key}.refused", list(refused), want)
        segment_s = self.required(f"{key}.segment_s", table, "a list of seconds")
        if not isinstance(segment_s, list) or len(segment_s) != len(starts):
            want = f"a list of {len(starts)} seconds, as many as starts"
            self.refuse(f"{key}.segment_s", segment_s, want)
        layout = self.required(f"{key}.layout", table, choices_of(Layout))
        threads, instances = self._runs(key, table, units.get(HOST_UNIT))
        number = {
            name: self.plain(f"{key}.{name}", table.get(name, 0.0), most=most)
            for name, most in _MOST.items()
        }
        return MeasuredTimes(
            model=ModelId(self.text(f"{key}.model", table, _MODEL_ID, "64 hexadecimal digits")),
            starts=starts,
            shapes=self._shapes(f"{key}.shapes", table.get("shapes", {})),
            source=self.source_of(f"{key}.source", source),
            times=SegmentTimes(
                configuration=Configuration(
                    unit=UnitId(unit),
                    layout=self.choice(f"{key}.layout", layout, Layout),
                    threads=threads,
                    instances=instances,
                    falls_back=self.flag(f"{key}.falls_back", table.get("falls_back", False)),
                    is_half=self.flag(f"{key}.is_half", table.get("is_half", False)),
                ),
                segment_s=tuple(
                    self.plain(f"{key}.segment_s", s, most=DURATION.most) for s in segment_s
                ),
                is_divisible=self.flag(f"{key}.is_divisible", table.get("is_divisible", True)),
                refused=refused,
                **number,
            ),
        )

    def _runs(self, key: str, table: Table, processor: UnitProfile | None) -> tuple[int, int]:
        """(threads of each run, how many runs at once)"""
        threads_key, instances_key = f"{key}.threads", f"{key}.instances"
        wanted = self.required(threads_key, table, "a whole number")
        threads = self.whole(threads_key, wanted, least=0)
        instances = self.whole(instances_key, table.get("instances", 1), least=1, most=MOST_CORES)
        # What another unit leaves to the processor runs on its cores too.
        if processor is None or processor.cores is None:
            return threads, instances
        cores = int(processor.cores.value)
        if threads > cores:
            self.refuse(threads_key, threads, f"at most {cores}, the cores of {HOST_UNIT}")
        if threads * instances > cores:
            most = cores // threads
            want = f"at most {most}: {HOST_UNIT} has {cores} cores, and each run {threads} threads"
            self.refuse(instances_key, instances, want)
        return threads, instances

    def _shapes(self, key: str, value: object) -> tuple[tuple[TensorName, Shape], ...]:
        table = self.table(key, value)
        return tuple(
            (TensorName(name), self.wholes(f"{key}.{name}", dims)) for name, dims in table.items()
        )


def _given(table: Table, key: str) -> object:
    """What stands in the file as the value of a sourced quantity that was read before."""
    value: object = table
    for name in (*key.split("."), "value"):
        assert isinstance(value, Mapping)
        value = value[name]
    return value
