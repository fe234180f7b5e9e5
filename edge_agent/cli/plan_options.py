"""What the options of `plan --devices` say: devices, links, bounds, pins and bans, as written."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Final

from edge_agent.devices import DeviceId, UnitId
from edge_agent.errors import UsageError
from edge_agent.plans import Bound, Target
from edge_agent.problems import Link
from edge_agent.profile_files.fields import close_to
from edge_agent.quantities import DURATION, SIZE, Measure, parse

ALL = "all"
"""Instead of two devices: a link of every device to every other one."""
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_GOODPUT = Measure(
    name="bits or bytes per second, without what headers take",
    example="100Mbit",
    factors={f"{prefix}bit": factor / 8 for prefix, factor in _PREFIXES.items()}
    | {f"{prefix}B": factor for prefix, factor in _PREFIXES.items()}
    | {f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMG", start=1)},
    most=1e15 / 8,
    least=1 / 8,
)
_RATE = Measure(
    name="requests per second",
    example="20/s",
    factors={"/s": 1.0, "/min": 1 / 60},
    most=1e9,
    least=1e-6,
)
_ENERGY = Measure(
    name="joules per request",
    example="2.5J",
    factors={"J": 1.0, "mJ": 1e-3, "kJ": 1e3},
    most=1e9,
)
_ENERGY_PER_BYTE = Measure(
    name="joules per byte",
    example="5nJ/B",
    factors={"J/B": 1.0, "mJ/B": 1e-3, "uJ/B": 1e-6, "µJ/B": 1e-6, "nJ/B": 1e-9, "pJ/B": 1e-12},
    most=1e3,
)
_BOUNDS: Mapping[Target, Measure] = {
    Target.LATENCY: DURATION,
    Target.THROUGHPUT: _RATE,
    Target.ENERGY: _ENERGY,
    Target.MEMORY: SIZE,
    Target.BYTES: SIZE,
}
_EXTRAS = {"one-way": "one-way", "medium": "medium=NAME", "joules": "joules=5nJ/B"}
_LINK_FORM = "want A-B=100Mbit,2ms, with [,one-way][,medium=NAME][,joules=5nJ/B] behind it"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedProfile:
    """A device that the user named, and where its profile lies."""

    id: DeviceId | None
    """None: as the profile calls itself."""
    path: Path
    text: str
    """As it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the user wants something: a device, or one of its units."""

    device: DeviceId
    unit: UnitId | None

    def __str__(self) -> str:
        return self.device if self.unit is None else f"{self.device}/{self.unit}"


def asked_targets(options: argparse.Namespace) -> tuple[Target, ...]:
    """Those of `--target`, each once; () for those that are usual.

    Raises:
        UsageError: `--pareto` is asked for over one alone.
    """
    targets = tuple(dict.fromkeys(Target(name) for name in options.target or ()))
    if options.pareto and len(targets) == 1:
        raise UsageError(f"--pareto: got the target {targets[0]} alone, want two or more --target")
    return targets


def parse_devices(texts: Sequence[str], shipped: Mapping[str, Path]) -> tuple[NamedProfile, ...]:
    """`[ID=]FILE` or `[ID=]NAME`, where `shipped` says which names there are.

    Raises:
        UsageError: an id is none, or it is neither a file nor a known name.
    """
    return tuple(_named(text, shipped) for text in texts)


def _named(text: str, shipped: Mapping[str, Path]) -> NamedProfile:
    own, equals, rest = text.partition("=")
    what = rest if equals else text
    if equals and (not _ID.fullmatch(own) or own == ALL):
        raise UsageError(
            f'--devices {text}: got the id "{own}", want 1 to 64 of A-Z a-z 0-9 - _ . and not '
            f"{ALL}, as in lab=raspberry-pi-5-8gb"
        )
    if not what:
        raise UsageError(
            f"--devices {text}: got an empty name, want a profile file (.toml) or one of the "
            f"profiles that come along: {', '.join(shipped)}"
        )
    path = shipped.get(what)
    if path is None:
        path = Path(what)
        if not (path.suffix == ".toml" or "/" in what or path.exists()):
            close = close_to(what, shipped)
            raise UsageError(
                f'--devices {text}: got "{what}", want a profile file (.toml) or one of the '
                f"profiles that come along: {', '.join(shipped)}{close}"
            )
    return NamedProfile(id=DeviceId(own) if equals else None, path=path, text=text)


def parse_links(texts: Sequence[str], devices: Sequence[DeviceId]) -> tuple[Link, ...]:
    """`A-B=RATE,LATENCY…` options as links; those of `all` where no other option gives one.

    Raises:
        UsageError: it is written differently, a device is unknown, or a link is given twice.
    """
    general: dict[tuple[DeviceId, DeviceId], Link] = {}
    special: dict[tuple[DeviceId, DeviceId], Link] = {}
    said: dict[tuple[bool, DeviceId, DeviceId], str] = {}
    for text in texts:
        ends, equals, rest = text.partition("=")
        if not equals or not ends or not rest:
            raise UsageError(f"--link {text}: {_LINK_FORM}")
        is_general = ends == ALL
        chosen = general if is_general else special
        for link in _links(text, ends, rest, devices):
            pair = link.source, link.target
            if pair in chosen:
                raise UsageError(
                    f"--link {text}: the link from {pair[0]} to {pair[1]} is given twice, by "
                    f"--link {said[is_general, *pair]} before; leave one out"
                )
            chosen[pair] = link
            said[is_general, *pair] = text
    merged = general | special
    return tuple(merged[pair] for pair in permutations(devices, 2) if pair in merged)


def _links(text: str, ends: str, rest: str, devices: Sequence[DeviceId]) -> Iterator[Link]:
    goodput_bytes_per_s, latency_s, further = _link_numbers(text, rest)
    is_one_way, medium, joules_per_byte = _link_extras(text, further)
    if ends == ALL:
        if is_one_way:
            raise UsageError(f"--link {text}: {ALL} goes both ways; leave one-way out")
        if len(devices) < 2:
            raise UsageError(
                f"--link {text}: there is one device, {devices[0]}; name more with --devices"
            )
        pairs = list(permutations(devices, 2))
    else:
        source, target, is_directed = _link_ends(text, ends, devices)
        pairs = [(source, target)]
        if not (is_directed or is_one_way):
            pairs.append((target, source))
    for source, target in pairs:
        yield Link(
            source=source,
            target=target,
            latency_s=latency_s,
            goodput_bytes_per_s=goodput_bytes_per_s,
            medium=medium,
            joules_per_byte=joules_per_byte,
        )


def _link_numbers(text: str, rest: str) -> tuple[float, float, list[str]]:
    rate, *others = rest.split(",")
    if not others:
        raise UsageError(f"--link {text}: got no latency, {_LINK_FORM}")
    latency, *further = others
    # "100Mbit/s" is as good: per second is the only way.
    goodput = quantity(f"--link {text}: goodput", rate.removesuffix("/s"), _GOODPUT)
    if not goodput:
        raise UsageError(
            f'--link {text}: goodput: got "{rate}", want above 0; leave a link out that is none'
        )
    return goodput, quantity(f"--link {text}: latency", latency, DURATION), further


def _link_extras(text: str, further: Sequence[str]) -> tuple[bool, str, float]:
    """(whether it goes one way only, medium, joules per byte)."""
    is_one_way, medium, joules_per_byte = False, "", 0.0
    seen: set[str] = set()
    for extra in further:
        key, equals, value = extra.partition("=")
        if key not in _EXTRAS or (key == "one-way" and equals):
            close = "" if key in _EXTRAS else close_to(key, _EXTRAS)
            raise UsageError(f'--link {text}: got "{extra}", {_LINK_FORM}{close}')
        if key in seen:
            raise UsageError(f"--link {text}: {key} is given twice; leave one out")
        seen.add(key)
        if key == "one-way":
            is_one_way = True
        elif not value:
            raise UsageError(f'--link {text}: got "{extra}" without a value, want {_EXTRAS[key]}')
        elif key == "medium":
            medium = value
        else:
            joules_per_byte = quantity(f"--link {text}: joules", value, _ENERGY_PER_BYTE)
    return is_one_way, medium, joules_per_byte


def _link_ends(
    text: str, ends: str, devices: Sequence[DeviceId]
) -> tuple[DeviceId, DeviceId, bool]:
    """(source, target, whether `>` says the direction). Ids may have dashes of their own."""
    is_directed = ">" in ends
    sign = ">" if is_directed else "-"
    places = [at for at, letter in enumerate(ends) if letter == sign]
    pairs = [(ends[:at], ends[at + 1 :]) for at in places]
    known = [(a, b) for a, b in pairs if a in devices and b in devices]
    if len(known) > 1:
        ways = " or ".join(f"{a} and {b}" for a, b in known)
        raise UsageError(
            f"--link {text}: may mean {ways}; give devices other ids, as in a={known[0][0]}"
        )
    if not known:
        raise UsageError(f"--link {text}: {_unknown_ends(pairs, devices)}")
    ((source, target),) = known
    if source == target:
        raise UsageError(f"--link {text}: leads from {source} to itself; name two devices")
    return DeviceId(source), DeviceId(target), is_directed


def _unknown_ends(pairs: Sequence[tuple[str, str]], devices: Sequence[DeviceId]) -> str:
    there = f"there are {', '.join(devices)}"
    if not pairs:
        return f"names one device, want two as in A-B, or {ALL}; {there}"
    half = [(a, b) for a, b in pairs if a in devices or b in devices] or pairs[:1]
    a, b = half[0]
    wrong = b if a in devices else a
    return f'got device "{wrong}", which is not there: {there}{close_to(wrong, devices)}'


def parse_bounds(texts: Sequence[str]) -> tuple[Bound, ...]:
    """`TARGET=LIMIT` options.

    Raises:
        UsageError: it is written differently, or a target has two bounds.
    """
    bounds: dict[Target, Bound] = {}
    for text in texts:
        name, equals, limit = text.partition("=")
        if not equals or not limit:
            raise UsageError(f"--bound {text}: want TARGET=LIMIT, as latency=80ms")
        if name not in list(Target):
            raise UsageError(
                f'--bound {text}: got "{name}", want one of {", ".join(Target)}'
                f"{close_to(name, list(Target))}"
            )
        target = Target(name)
        if target in bounds:
            raise UsageError(f"--bound {text}: {target} has a bound already; leave one out")
        number = quantity(f"--bound {text}", limit, _BOUNDS[target])
        bounds[target] = Bound(target=target, limit=number)
    return tuple(bounds.values())


def parse_places(
    option: str, texts: Sequence[str], units: Mapping[DeviceId, Collection[UnitId]]
) -> tuple[Place, ...]:
    """`DEVICE` or `DEVICE/UNIT`, as `--ban` has them.

    Raises:
        UsageError: there is no such device or unit.
    """
    return tuple(_place(f"{option} {text}", text, units) for text in texts)


def parse_device_pins(
    texts: Sequence[str], units: Mapping[DeviceId, Collection[UnitId]]
) -> tuple[tuple[str, Place], ...]:
    """`PATTERN=DEVICE[/UNIT]` options.

    Raises:
        UsageError: it is written differently, or there is no such device or unit.
    """
    pins = []
    for text in texts:
        pattern, _, where = text.rpartition("=")
        if not pattern or not where:
            raise UsageError(
                f"--pin {text}: want PATTERN=DEVICE or PATTERN=DEVICE/UNIT, as '/layer4/*=lab/gpu'"
            )
        pins.append((pattern, _place(f"--pin {text}", where, units)))
    return tuple(pins)


def _place(where: str, text: str, units: Mapping[DeviceId, Collection[UnitId]]) -> Place:
    name, slash, unit = text.partition("/")
    device = DeviceId(name)
    if device not in units:
        raise UsageError(
            f'{where}: got device "{name}", which is not there: there are {", ".join(units)}'
            f"{close_to(name, units)}"
        )
    if not slash:
        return Place(device=device, unit=None)
    if unit not in units[device]:
        raise UsageError(
            f'{where}: {device} has no unit "{unit}", it has {", ".join(units[device])}'
            f"{close_to(unit, units[device])}"
        )
    return Place(device=device, unit=UnitId(unit))


def quantity(where: str, text: str, measure: Measure) -> float:
    """The number in the SI unit.

    Raises:
        UsageError: as `quantities.parse`, behind `where`.
    """
    try:
        return parse(text, measure)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
