"""What is written down of each lab that is up, where any process of the machine finds it, and the
folders of what its devices keep."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.errors import LabError
from lab.network import PREFIX, SUBNETS, address
from lab.options import Device, Link, Plan

FOLDER = Path("/run")
KEPT = Path("/var/tmp")
"""On a disk: what a device keeps is not to be taken from its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A lab as it was made."""

    plan: Plan
    subnet: int

    def address(self, device: int) -> str:
        """The one IPv4 address of a device."""
        return address(self.subnet, device)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those of all devices, in order."""
        return tuple(map(self.address, range(len(self.plan.devices))))


def record_file(name: str, folder: Path = FOLDER) -> Path:
    """Where a lab is written down."""
    return folder / f"{PREFIX}-{name}.json"


def log_file(name: str, folder: Path = FOLDER) -> Path:
    """What the delay line of a lab says."""
    return folder / f"{PREFIX}-{name}.log"


def device_folder(name: str, device: int, kept: Path = KEPT) -> Path:
    """Where the agent of a device keeps its state, with its socket beside it."""
    return kept / f"{PREFIX}-{name}" / str(device)


def socket(name: str, device: int) -> Path:
    """Where the agent of a device listens, also for clients on the host."""
    return device_folder(name, device) / "run" / "agent.sock"


def make_folders(plan: Plan, kept: Path = KEPT) -> None:
    """Make a folder for each device.

    Raises:
        LabError: one cannot be made.
    """
    try:
        device_folder(plan.name, 0, kept).parent.mkdir(mode=0o700)
        for i, _ in enumerate(plan.devices):
            device_folder(plan.name, i, kept).mkdir(mode=0o700)
    except OSError as error:
        raise LabError(
            f"{error.filename}: {error.strerror}: tools/testbed down --name {plan.name} removes it"
        ) from error


def write(plan: Plan, folder: Path = FOLDER) -> Record:
    """Write a lab down, with a subnet that no other lab has.

    Raises:
        LabError: a lab of that name is written down already, or there is no free subnet.
    """
    file = record_file(plan.name, folder)
    with _creating(file) as is_new:
        if not is_new:
            raise LabError(f"lab {plan.name} is up already: tools/testbed down --name {plan.name}")
    try:
        record = Record(plan=plan, subnet=_take_subnet(plan.name, folder))
        file.write_text(json.dumps(asdict(record)))
    except BaseException:
        remove(plan.name, folder)
        raise
    return record


def read(name: str, folder: Path = FOLDER) -> Record:
    """The lab of that name.

    Raises:
        LabError: none is written down, or not to its end.
    """
    try:
        found = json.loads(record_file(name, folder).read_text())
        plan = found["plan"]
        return Record(
            subnet=found["subnet"],
            plan=Plan(
                name=plan["name"],
                devices=tuple(Device(**device) for device in plan["devices"]),
                links=tuple(Link(**link) for link in plan["links"]),
            ),
        )
    except FileNotFoundError:
        raise LabError(f"no lab {name} is up: tools/testbed up makes one") from None
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"lab {name} is only half there: tools/testbed down --name {name} removes it"
        ) from error


def remove(name: str, folder: Path = FOLDER, kept: Path = KEPT) -> bool:
    """Forget a lab, with what its devices kept; whether there was anything to forget.

    Raises:
        LabError: something cannot be removed.
    """
    try:
        return _remove(name, folder, device_folder(name, 0, kept).parent)
    except OSError as error:
        raise LabError(f"{error.filename}: {error.strerror}") from error


def _remove(name: str, folder: Path, files: Path) -> bool:
    if is_there := files.exists():
        shutil.rmtree(files)
    own = [subnet for subnet in _subnets(folder) if subnet.read_text() == name]
    found = [p for p in (*own, log_file(name, folder), record_file(name, folder)) if p.exists()]
    for path in found:
        path.unlink(missing_ok=True)
    return is_there or bool(found)


def _take_subnet(name: str, folder: Path) -> int:
    for subnet in range(SUBNETS):
        with _creating(folder / f"{PREFIX}-subnet.{subnet}", name) as is_new:
            if is_new:
                return subnet
    raise LabError(f"all {SUBNETS} subnets are taken by labs: tools/testbed down removes one")


def _subnets(folder: Path) -> list[Path]:
    return list(folder.glob(f"{PREFIX}-subnet.*"))


@contextmanager
def _creating(file: Path, text: str = "") -> Iterator[bool]:
    """Whether the file was created now, with that text; two processes cannot both."""
    try:
        with file.open("x") as created:
            created.write(text)
    except FileExistsError:
        yield False
    else:
        yield True
