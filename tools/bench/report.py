"""Knows what every benchmark says beside its figures, and how tables and options look."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict

import zmq

from edge_agent.engine.runtime import installed_builds
from edge_agent.profiles import RatioInterval
from edge_agent.profiling.ratio import Run, compare, compare_with_control, is_no_worse
from models.catalogue import NAMES
from models.fetch import default_cache, fetch

PACKAGES = ("edge-agent", "onnx", "numpy", "pyzmq", "msgspec")

Row = dict[str, object]
Quiet = Callable[[], bool]
"""Whether nothing else worked on the device since the last call."""


class Limits(TypedDict):
    """When a comparison ends, in the words of edge_agent.profiling.ratio."""

    rng: random.Random
    max_pairs: int
    min_pairs: int
    half_width: float
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a benchmark was asked to do."""

    models: dict[str, Path]
    cache: Path
    is_smoke: bool
    is_json: bool
    seed: int
    budget_s: float
    """The most seconds for one comparison."""
    flags: frozenset[str] = frozenset()
    """Which of its own options were given."""

    def compare(
        self, a: Run, b: Run, max_pairs: int = 300, quiet: Quiet | None = None
    ) -> RatioInterval:
        """Time of `a` over time of `b`, from interleaved pairs; of those that were `quiet`, if
        there are enough."""
        return compare(a, b, **self._limits(max_pairs), quiet=quiet)

    def compare_with_control(
        self, a: Run, b: Run, quiet: Quiet | None = None
    ) -> tuple[RatioInterval, RatioInterval]:
        """As `compare`, and `a` over itself in the same rounds."""
        return compare_with_control(a, b, **self._limits(300), quiet=quiet)

    def _limits(self, max_pairs: int) -> Limits:
        most = min(max_pairs, 8 if self.is_smoke else 300)
        return {
            "rng": random.Random(self.seed),
            "max_pairs": most,
            "min_pairs": min(20, most),
            "half_width": 0.01,
            "budget_s": self.budget_s,
        }


def options(
    name: str,
    about: str,
    models: Sequence[str],
    smoke_models: Sequence[str],
    flags: Mapping[str, str] = MappingProxyType({}),
) -> Options:
    """Parse the command line, pin this process and its children to cores, fetch the models.

    `flags` are options of this benchmark alone, with what they mean.
    """
    parser = argparse.ArgumentParser(prog=f"tools/{name}", description=about)
    parser.add_argument("--models", nargs="+", metavar="MODEL", choices=NAMES)
    parser.add_argument("--smoke", action="store_true", help="one tiny model, few pairs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="of tools/zoo")
    parser.add_argument("--cores", help="processor cores for both sides, such as 0,1")
    parser.add_argument("--budget", type=float, help="seconds for one comparison, default 60")
    parser.add_argument("--seed", type=int, default=0)
    for flag, meaning in flags.items():
        parser.add_argument(
            f"--{flag}", action="append_const", dest="flags", const=flag, help=meaning
        )
    parsed = parser.parse_args()
    if parsed.cores:
        os.sched_setaffinity(0, {int(core) for core in parsed.cores.split(",")})
    names = parsed.models or (smoke_models if parsed.smoke else models)
    return Options(
        models=fetch(names, parsed.cache),
        cache=parsed.cache,
        is_smoke=parsed.smoke,
        is_json=parsed.json,
        seed=parsed.seed,
        budget_s=parsed.budget or (5.0 if parsed.smoke else 60.0),
        flags=frozenset(parsed.flags or ()) if flags else frozenset(),
    )


def environment() -> dict[str, object]:
    """Versions, processor and cores: figures mean nothing without them."""
    return {
        "processor": _processor(),
        "cores": sorted(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **dict(installed_builds()),
        **{package: metadata.version(package) for package in PACKAGES},
        "libzmq": zmq.zmq_version(),
    }


def ratio_cell(ratio: RatioInterval) -> Row:
    """A ratio as a cell of a row: JSON in `--json`, text in tables."""
    return asdict(ratio)


def verdict(ratio: RatioInterval, bar: float, control: RatioInterval) -> Row:
    """The cells of a row that say how a comparison ended."""
    return {
        "control": ratio_cell(control),
        "bar": bar,
        "is_met": is_no_worse(ratio, bar, control),
    }


def interval(ratio: RatioInterval) -> str:
    """A ratio as people read it."""
    return f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def progress(text: str) -> None:
    """Say on stderr what is being measured."""
    print(text, file=sys.stderr, flush=True)


def publish(asked: Options, rows: Sequence[Row]) -> None:
    """Print the rows with the environment, as tables for people or as JSON.

    Rows that follow each other and have the same columns form one table.
    """
    if asked.is_json:
        print(json.dumps({"environment": environment(), "rows": rows}, indent=1))
        return
    print("  ".join(f"{name} {value}" for name, value in environment().items()))
    for columns, group in groupby(rows, key=tuple):
        table = [columns, *(tuple(_cell(value) for value in row.values()) for row in group)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        print()
        for line in table:
            cells = [f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)]
            print("  ".join(cells).rstrip())


def _cell(value: object) -> str:
    if isinstance(value, dict) and "median" in value:
        return interval(RatioInterval(**value))
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.machine()
