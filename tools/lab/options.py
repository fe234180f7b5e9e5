"""What a lab is to be: how its options are written, and what they may say. Nothing is made here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from edge_agent.quantities import DURATION, SIZE, Measure, parse, written
from lab.errors import UsageError

MOST_DEVICES = 100
LEAST_SPEED = 0.01
LEAST_MEMORY_BYTES = 4 * 2**20
MOST_RTT_S = 10.0
RATE = Measure(
    name="bits per second",
    example="100Mbit",
    factors={"bit": 1.0, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9},
    most=100e9,
    least=8e3,
)
NOTHING = "-"
"""Stands for no limit in a list with an entry for each device."""
_NAME = re.compile(r"[a-z0-9]{1,24}")
_PAIR = re.compile(r"(\d{1,3})-(\d{1,3})=(.+)")
_LINK = 'want I-J=RATE, I-J=RATE/ROUNDTRIP, I-J=ROUNDTRIP or I-J=none, as in "0-1=100Mbit/20ms"'
Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What runs on a device may use this much of the machine; None is no limit."""

    core: int | None = None
    speed: float = 1.0
    """Share of the time of its core, or of all cores where it has none of its own."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What two devices have between them, the same in both directions."""

    first: int
    """Less than `second`."""
    second: int
    bits_per_s: float | None = None
    """In each direction; None is no limit."""
    rtt_s: float = 0.0
    """Of the round trip; each direction takes half of it."""
    is_cut: bool = False
    """Nothing gets across."""

    def text(self) -> str:
        """As it is written in an option."""
        if self.is_cut:
            return f"{self.first}-{self.second}=none"
        rate = [] if self.bits_per_s is None else [_written(self.bits_per_s, RATE)]
        rtt = [_written(self.rtt_s, DURATION)] if self.rtt_s else []
        return f"{self.first}-{self.second}={'/'.join(rate + rtt)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A lab that can be made."""

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    """Pairs that are not among them have no limit."""


def plan(
    *,
    name: str,
    devices: int,
    links: Iterable[Link] = (),
    cores: Sequence[int | None] = (),
    speeds: Sequence[float] = (),
    memory: Sequence[int | None] = (),
    usable_cores: Iterable[int],
) -> Plan:
    """The lab of these parts; an empty sequence limits no device.

    Raises:
        UsageError: they do not fit each other or this machine.
    """
    check_name(name)
    if not 1 <= devices <= MOST_DEVICES:
        raise UsageError(f"--devices: got {devices}, want 1 to {MOST_DEVICES}")
    usable = sorted(usable_cores)
    for core in _each("--cores", cores, devices):
        if core is not None and core not in usable:
            raise UsageError(f"--cores: got core {core}, want some of {_listed(usable)}")
    for speed in _each("--speeds", speeds, devices):
        if not LEAST_SPEED <= speed <= 1:
            raise UsageError(f"--speeds: got {speed:g}, want {LEAST_SPEED:g} to 1")
    for size in _each("--memory", memory, devices):
        if size is not None and size < LEAST_MEMORY_BYTES:
            least = written(LEAST_MEMORY_BYTES, SIZE)
            raise UsageError(f"--memory: got {written(size, SIZE)}, want at least {least}")
    return Plan(
        name=name,
        devices=tuple(
            Device(
                core=cores[i] if cores else None,
                speed=speeds[i] if speeds else 1.0,
                memory_bytes=memory[i] if memory else None,
            )
            for i in range(devices)
        ),
        links=_checked(tuple(links), devices),
    )


def check_name(name: str) -> None:
    """Raises:
    UsageError: no lab may be called so.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f'--name: got "{name}", want 1 to 24 of a-z and 0-9')


def _each(option: str, entries: Sequence[Entry], devices: int) -> Sequence[Entry]:
    if entries and len(entries) != devices:
        raise UsageError(
            f"{option}: got {len(entries)} entries, want one for each of the {devices} devices"
        )
    return entries


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _checked(links: tuple[Link, ...], devices: int) -> tuple[Link, ...]:
    seen = set()
    for link in links:
        pair = f"{link.first}-{link.second}"
        if not 0 <= link.first < link.second < devices:
            raise UsageError(
                f"--links: got {pair}, want two different devices of 0 to {devices - 1}"
            )
        if pair in seen:
            raise UsageError(f"--links: got {pair} twice, want each pair once at most")
        seen.add(pair)
    return links


def parse_links(text: str) -> tuple[Link, ...]:
    """Of "0-1=100Mbit,1-2=10Mbit/20ms,0-2=none".

    Raises:
        UsageError: it is written otherwise.
    """
    return tuple(_link(part) for part in text.split(",")) if text else ()


def _link(text: str) -> Link:
    found = _PAIR.fullmatch(text.strip())
    if found is None:
        raise UsageError(f'--links: got "{text}", {_LINK}')
    first, second = sorted((int(found[1]), int(found[2])))
    if found[3] == "none":
        return Link(first=first, second=second, is_cut=True)
    written_rate, slash, written_rtt = found[3].partition("/")
    if not slash and written_rate.endswith("s"):
        written_rate, written_rtt = "", written_rate
    elif slash and not (written_rate and written_rtt):
        raise UsageError(f'--links: got "{text}", {_LINK}')
    bits_per_s = _quantity(f"--links {text}", written_rate, RATE) if written_rate else None
    rtt_s = _quantity(f"--links {text}", written_rtt, DURATION) if written_rtt else 0.0
    if rtt_s > MOST_RTT_S:
        raise UsageError(f'--links: got "{text}", want a round trip of at most {MOST_RTT_S:g} s')
    if bits_per_s == 0:
        raise UsageError(f'--links: got "{text}", want a rate above 0, or none for no link')
    return Link(first=first, second=second, bits_per_s=bits_per_s, rtt_s=rtt_s)


def parse_cores(text: str) -> tuple[int | None, ...]:
    """Of "0,1,-".

    Raises:
        UsageError: it is written otherwise.
    """

    def core(part: str) -> int:
        if not re.fullmatch(r"\d{1,4}", part):
            raise UsageError(f'--cores: got "{part}", want the number of a core or {NOTHING}')
        return int(part)

    return _list(text, core, None)


def parse_speeds(text: str) -> tuple[float, ...]:
    """Of "1.0,0.5,-".

    Raises:
        UsageError: it is written otherwise.
    """

    def speed(part: str) -> float:
        if not re.fullmatch(r"\d*\.?\d+", part):
            raise UsageError(f'--speeds: got "{part}", want a share as in 0.5 or {NOTHING}')
        return float(part)

    return _list(text, speed, 1.0)


def parse_memory(text: str) -> tuple[int | None, ...]:
    """Of "512MiB,1GiB,-", in bytes.

    Raises:
        UsageError: it is written otherwise.
    """
    return _list(text, lambda part: int(_quantity("--memory", part, SIZE)), None)


def _list(text: str, read: Callable[[str], Entry], nothing: Entry) -> tuple[Entry, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    return tuple(nothing if part == NOTHING else read(part) for part in parts)


def _quantity(option: str, text: str, measure: Measure) -> float:
    try:
        return parse(text, measure)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def written_size(number: int) -> str:
    """Bytes as they are written in an option."""
    return _written(number, SIZE)


def _written(number: float, measure: Measure) -> str:
    return written(number, measure).replace(" ", "")
