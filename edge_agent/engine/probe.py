"""The child process that tries each execution provider, so that a crash kills only the child."""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
from collections.abc import Sequence
from typing import Final

from edge_agent.config import decode_units
from edge_agent.devices import ComputeUnit
from edge_agent.engine.compiled_form import with_keeping
from edge_agent.engine.offers import candidates
from edge_agent.engine.units import finding_as_json, judge, offered_as_json
from edge_agent.errors import RuntimeUnavailable

_PR_SET_PDEATHSIG: Final = 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Write lines of JSON: each package before it is asked what it brings, the providers offered,
    then each provider as it is judged, and a unit once more with what it keeps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--units", default="[]", help="settings, as `encode_units` writes them")
    parser.add_argument("--skip", action="append", default=[])
    options = parser.parse_args(arguments)
    _end_with_parent()
    try:
        found = candidates(
            decode_units(options.units), skip_packages=options.skip, on_asking=_tell_of_asking
        )
    except RuntimeUnavailable as error:
        print(json.dumps({"unavailable": str(error)}), flush=True)
        return
    print(offered_as_json(found), flush=True)
    for candidate in found:
        if candidate.name not in options.skip:
            judged = judge(candidate, options.cores)
            print(finding_as_json(candidate.name, judged), flush=True)
            if isinstance(judged, ComputeUnit):
                # Should this end the process, it costs what the unit keeps, not the unit.
                print(json.dumps({"keeping": candidate.name}), flush=True)
                print(finding_as_json(candidate.name, with_keeping(judged)), flush=True)


def _tell_of_asking(package: str) -> None:
    print(json.dumps({"asking": package}), flush=True)


def _end_with_parent() -> None:
    # A library that hangs keeps this process from noticing anything: prctl(2).
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
