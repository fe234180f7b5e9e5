"""Measures what this device can do: its device profile. For the agent, which gives way to what it
serves, and for the command that writes the profile to a file.

What loads providers runs in child processes, which may crash.
"""

from __future__ import annotations

import datetime
import os
import platform
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from edge_agent import clock
from edge_agent.agent.processes import NICENESS, child_environment, set_session
from edge_agent.devices import ComputeUnit, Device
from edge_agent.errors import BuilderLost, EdgeAgentError, RuntimeUnavailable
from edge_agent.hardware import DeviceProfile, MeasuredTimes, Source, SourceKind
from edge_agent.profiles import HOST_UNIT
from edge_agent.profiling.measured import MeasuredUnit, UnitRates, device_profile
from edge_agent.telemetry import host
from edge_agent.telemetry.power import PowerMeter, find_meter

MOST_LOAD: Final = 0.1
"""Share of the processor that others may use while it is measured; more is told."""
_METERED_S: Final = 2.0
_READ_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found."""

    profile: DeviceProfile
    load_fraction: float
    """Share of the processor that others used meanwhile: rates are too low by about as much."""

    @property
    def is_disturbed(self) -> bool:
        """Whether others used so much that it should be measured again."""
        return self.load_fraction > MOST_LOAD


def measured_here(device: Device) -> Source:
    """Where the values are from that are measured on this device now."""
    runtime = f"{device.runtime_build} {device.runtime_version}"
    return Source(
        key="measured",
        text=f"measured on {platform.node()} with {runtime}",
        kind=SourceKind.MEASURED,
        date=_today(),
    )


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


class Measuring:
    """Asks child processes, one after the other. One thread uses it, but for `stop`."""

    def __init__(
        self,
        tell: Callable[[str], None],
        wait_for_turn: Callable[[], None] = lambda: None,
        alone: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        is_background: bool = False,
    ) -> None:
        """`tell` hears what begins and what is left out; `wait_for_turn` blocks until a slice of
        work, of about a second, may begin; `alone` keeps others from measuring while one unit is.
        In the background the children give way to others."""
        self._tell = tell
        self._wait_for_turn = wait_for_turn
        self._alone = alone
        self._is_background = is_background
        self._stopping = threading.Lock()
        self._is_stopped = False
        self._child: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """End what is under way, from any thread; who waits for it gets `BuilderLost`."""
        with self._stopping:
            self._is_stopped = True
            if self._child is not None:
                self._child.kill()

    def profile(
        self,
        device: Device,
        source: Source,
        limit_s: float,
        latency: Sequence[MeasuredTimes] = (),
    ) -> Measured:
        """The profile of this device; a child that says nothing for `limit_s` is given up.

        Takes some seconds for each compute unit.

        Raises:
            EdgeAgentError: the processor cannot be measured.
        """
        meter = find_meter()
        self._wait_for_turn()
        others = host.OtherLoad((os.getpid(),))
        idle_w = None if meter is None else meter.measure_w(_METERED_S)
        free_bytes = host.free_memory_bytes()
        units = tuple(self._units(device, meter, limit_s))
        load_fraction = others.fraction()
        if load_fraction > MOST_LOAD:
            text = f"{source.text}, while others used {load_fraction:.0%} of the processor"
            source = replace(source, text=text)
        found = device_profile(
            device,
            units,
            source=source,
            meter=None if meter is None else _metered(meter),
            idle_w=idle_w,
            free_memory_bytes=free_bytes,
            latency=tuple(replace(times, source=source) for times in latency),
        )
        return Measured(profile=found, load_fraction=load_fraction)

    def _units(
        self, device: Device, meter: PowerMeter | None, limit_s: float
    ) -> Iterator[MeasuredUnit]:
        for unit in device.units:
            self._tell(f"measuring {unit.id}")
            try:
                with self._alone():
                    rates = self._rates(unit, limit_s)
            except EdgeAgentError as error:
                if unit.id == HOST_UNIT or self._is_stopped:
                    raise
                self._tell(f"{unit.id} is left out: {error}")
                continue
            busy_w = None if meter is None else self._busy_w(unit, meter, limit_s)
            yield MeasuredUnit(unit=unit, rates=rates, busy_w=busy_w)

    def _rates(self, unit: ComputeUnit, limit_s: float) -> tuple[UnitRates, ...]:
        found = self.ask("rates", _text(unit), limit_s=limit_s)
        return msgspec.convert(found["rates"], tuple[UnitRates, ...])

    def _busy_w(self, unit: ComputeUnit, meter: PowerMeter, limit_s: float) -> float | None:
        """What the meter shows while a unit is busy; None if it does not get busy."""
        self._wait_for_turn()
        with self._running(["busy", _text(unit), str(_METERED_S * 2)]) as (child, _):
            begun = any("busy" in said for said in _said(child, limit_s))
            return meter.measure_w(_METERED_S) if begun else None

    def ask(self, *arguments: str, limit_s: float | None = None) -> dict[str, Any]:
        """What a child process of `edge_agent.profiling` says last.

        Raises:
            EdgeAgentError: it says what is wrong, crashes, or says nothing for `limit_s`.
        """
        last: dict[str, Any] = {}
        with self._running(arguments) as (child, errors):
            assert child.stdin is not None
            for last in _said(child, limit_s):
                if "asks" in last:
                    self._wait_for_turn()
                    with suppress(BrokenPipeError):
                        child.stdin.write(b"\n")
                        child.stdin.flush()
            code = child.wait()
            if self._is_stopped:
                raise BuilderLost("stopped")
            if code or not last or "asks" in last:
                errors.seek(0)
                told = "".join(errors.read().decode(errors="replace").strip().splitlines()[-1:])
                raise BuilderLost(f"measuring ended with code {code}: {told}")
        if "unavailable" in last:
            raise RuntimeUnavailable(last["unavailable"])
        if "failed" in last:
            raise BuilderLost(last["failed"])
        return last

    @contextmanager
    def _running(
        self, arguments: Sequence[str]
    ) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
        """A child process, and what it says on standard error; it ends with the block."""
        with tempfile.TemporaryFile() as errors:
            with self._stopping:
                if self._is_stopped:
                    raise BuilderLost("stopped")
                child = subprocess.Popen(
                    [sys.executable, "-m", "edge_agent.profiling", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=child_environment(),
                    # As a session of its own it can be lowered; else Ctrl-C is for it, too.
                    start_new_session=self._is_background,
                )
                self._child = child
            try:
                if self._is_background:
                    os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
                    set_session(Path(f"/proc/{child.pid}/autogroup"), NICENESS)
                yield child, errors
            finally:
                with self._stopping:
                    self._child = None
                child.kill()
                for pipe in (child.stdin, child.stdout):
                    assert pipe is not None
                    with suppress(BrokenPipeError):
                        pipe.close()
                child.wait()


def _said(child: subprocess.Popen[bytes], limit_s: float | None) -> Iterator[dict[str, Any]]:
    """What a child says, as it says it, until it ends.

    Raises: BuilderLost: it says nothing for too long.
    """
    assert child.stdout is not None
    begun = b""
    while True:
        until_s = None if limit_s is None else clock.monotonic_s() + limit_s
        while b"\n" not in begun:
            left_s = None if until_s is None else max(0.0, until_s - clock.monotonic_s())
            if not select.select([child.stdout], [], [], left_s)[0]:
                raise BuilderLost(f"measuring did not end within {limit_s:g} s")
            if not (came := os.read(child.stdout.fileno(), _READ_BYTES)):
                return
            begun += came
        line, _, begun = begun.partition(b"\n")
        # A package may write what it likes.
        with suppress(msgspec.DecodeError):
            found = msgspec.json.decode(line)
            if isinstance(found, dict):
                yield found


def _text(unit: ComputeUnit) -> str:
    return msgspec.json.encode(unit).decode()


def _metered(meter: PowerMeter) -> Source:
    text = f"measured: {meter.text}, read in sysfs; idle, and during a matrix product"
    return Source(key="meter", text=text, kind=SourceKind.MEASURED, date=_today())
