"""The command line of labs: tools/testbed up, run, status and down."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, cast

import psutil

from lab import labs, network, options, state
from lab.attended import Attended, Stopped
from lab.errors import LabError, UsageError
from lab.labs import HOST, LINE, Lab, Place
from lab.options import Device
from lab.programs import check_possible
from lab.state import Record

PROGRAM = "tools/testbed"
VARIABLE = "EDGE_TESTBED"
ABOUT_UP = """Makes a lab of several devices on this machine, as root: each has a network namespace
with one address that all others reach, and may have a core, a share of its time, and memory of its
own. An agent on a device keeps its state and its socket in a folder of the device, which is removed
with the lab; all other files are those of this machine. With a COMMAND, runs it on the host,
removes the lab whatever happens, and ends with its exit code; EDGE_TESTBED tells it the lab's name,
EDGE_TESTBED_ADDRESSES the addresses of the devices."""
ABOUT_LINKS = """what some pairs have between them, in each direction: I-J=RATE (bit, kbit, Mbit,
Gbit per second; at most 50 ms or a round trip of it wait in front, ten packets at least),
I-J=RATE/ROUNDTRIP or I-J=ROUNDTRIP (20ms is 10 ms there and 10 ms back), I-J=none (they do not
reach each other). Other pairs have no limit. A process carries the packets that take time, so
links with a round trip need some time of the cores."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except UsageError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except LabError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(f"{PROGRAM}: {stopped}", file=sys.stderr)
        return stopped.code
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 130


def _run(given: list[str]) -> int:
    command: list[str] | None = None
    if given[:1] == ["up"] and "--" in given:
        cut = given.index("--")
        given, command = given[:cut], given[cut + 1 :]
        if not command:
            raise UsageError("up: got nothing behind --, want a command")
    asked = _parser().parse_args(given)
    match asked.verb:
        case "up":
            return _up(asked, command)
        case "run":
            return _run_command(asked)
        case "status":
            return _status(asked)
        case _:
            return _down(asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Labs of devices on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="up|run|status|down")
    up = verbs.add_parser(
        "up", description=ABOUT_UP, usage="%(prog)s --devices N [OPTION...] [-- COMMAND...]"
    )
    up.add_argument("--devices", type=int, required=True, metavar="N", help="how many devices")
    up.add_argument("--links", default="", metavar="0-1=100Mbit/20ms,...", help=ABOUT_LINKS)
    each = "for each device, or -"
    up.add_argument("--cores", default="", metavar="0,1,...", help=f"the core to run on, {each}")
    speeds = f"share of the time of its core, or of all cores if it has none of its own, {each}"
    up.add_argument("--speeds", default="", metavar="1.0,0.5,...", help=speeds)
    memory = f"most memory, as in 512MiB, {each}"
    up.add_argument("--memory", default="", metavar="SIZE,...", help=memory)
    run = verbs.add_parser("run", description="Runs a command in a lab that is up, on device 0.")
    run.add_argument("--on", default="0", metavar="I|host", help="on which device, or on the host")
    status = verbs.add_parser("status", description="Shows a lab and what runs in it.")
    status.add_argument("--json", action="store_true", help="print JSON")
    down = verbs.add_parser(
        "down", description="Kills what runs in a lab and removes it; whatever is left of it."
    )
    for verb, default in ((up, "lab"), *((v, _default_name()) for v in (run, status, down))):
        verb.add_argument("--name", default=default, help="of the lab; default: %(default)s")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND...")
    return parser


def _default_name() -> str:
    return os.environ.get(VARIABLE, "lab")


def _up(asked: argparse.Namespace, command: Sequence[str] | None) -> int:
    lab = Lab(
        asked.devices,
        links=options.parse_links(asked.links),
        cores=options.parse_cores(asked.cores),
        speeds=options.parse_speeds(asked.speeds),
        memory=options.parse_memory(asked.memory),
        name=asked.name,
    )
    with Attended() as attended:
        try:
            if command is not None:
                with lab:
                    return attended.run(lab, command)
            lab.make()
        except Stopped:
            lab.remove()  # it may have come just when all was made
            raise
    print("\n".join(_lines(_seen(lab.record))))
    return 0


def _run_command(asked: argparse.Namespace) -> int:
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    if not command:
        raise UsageError("run: got no command, want one, as in tools/testbed run --on 1 ip addr")
    check_possible()
    record = _read(asked.name)
    place = _place(asked.on, len(record.plan.devices))
    line = labs.entering(record.plan.name, place, command)
    os.execve(line[0], line, labs.variables(record, place, os.environ))
    raise AssertionError("execve does not return")


def _read(name: str) -> Record:
    options.check_name(name)
    return state.read(name)


def _place(text: str, devices: int) -> Place:
    if text == HOST:
        return HOST
    if not (text.isdecimal() and int(text) < devices):
        raise UsageError(f'--on: got "{text}", want {HOST} or a device of 0 to {devices - 1}')
    return int(text)


def _status(asked: argparse.Namespace) -> int:
    check_possible()
    seen = _seen(_read(asked.name))
    print(json.dumps(seen, indent=1) if asked.json else "\n".join(_lines(seen)))
    return 0


def _down(asked: argparse.Namespace) -> int:
    options.check_name(asked.name)
    if not labs.remove(asked.name):
        print(f"{PROGRAM}: nothing is left of a lab {asked.name}", file=sys.stderr)
    return 0


def _seen(record: Record) -> dict[str, Any]:
    plan = record.plan
    return {
        "name": plan.name,
        "devices": [
            {
                "device": i,
                "address": record.address(i),
                "socket": str(state.socket(plan.name, i)),
                "namespace": network.namespace(plan.name, i),
                "core": device.core,
                "speed": device.speed,
                "memory_bytes": device.memory_bytes,
                "processes": _processes(plan.name, i),
            }
            for i, device in enumerate(plan.devices)
        ],
        "links": [
            {
                "devices": [link.first, link.second],
                "bits_per_s": link.bits_per_s,
                "rtt_s": link.rtt_s,
                "is_cut": link.is_cut,
            }
            for link in plan.links
        ],
        "host": _processes(plan.name, HOST),
        "delay_line": _processes(plan.name, LINE),
    }


def _processes(name: str, member: int | str) -> list[dict[str, Any]]:
    found = []
    for pid in sorted(labs.process_ids(name, member)):
        try:
            found.append({"pid": pid, "command": _in_a_line(psutil.Process(pid).cmdline())})
        except psutil.NoSuchProcess:
            continue
    return found


def _in_a_line(command: Sequence[str]) -> str:
    return " ".join(" ".join(command).split())


def _lines(seen: dict[str, Any]) -> list[str]:
    record = state.read(cast(str, seen["name"]))
    found = [f"lab {record.plan.name}"]
    for device, entry in zip(record.plan.devices, seen["devices"], strict=True):
        found.append(f"device {entry['device']}  {entry['address']}{_limits(device)}")
        found += _process_lines(entry["processes"])
    found += [f"link {link.text()}" for link in record.plan.links]
    if any(link.rtt_s for link in record.plan.links) and not seen["delay_line"]:
        found.append(f"the delay line has ended: {state.log_file(record.plan.name)} may say why")
    if seen["host"]:
        found += ["host", *_process_lines(seen["host"])]
    return found


def _limits(device: Device) -> str:
    core = [] if device.core is None else [f"core {device.core}"]
    speed = [f"speed {device.speed:g}"] if device.speed < 1 else []
    size = device.memory_bytes
    memory = [] if size is None else [f"memory {options.written_size(size)}"]
    return "".join(f"  {part}" for part in core + speed + memory)


def _process_lines(processes: list[dict[str, Any]]) -> list[str]:
    return [f"  {process['pid']:>7} {process['command'][:100]}" for process in processes]


if __name__ == "__main__":
    sys.exit(main())
