"""The child process that tries each execution provider, so that a crash kills only the child."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from edge_agent.engine.units import finding_as_json, judge, offered_providers
from edge_agent.errors import RuntimeUnavailable


def main(arguments: Sequence[str] | None = None) -> None:
    """Write one line of JSON for the providers offered, then one for each as it is judged."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--skip", action="append", default=[])
    options = parser.parse_args(arguments)
    try:
        offered = offered_providers()
    except RuntimeUnavailable as error:
        print(json.dumps({"unavailable": str(error)}), flush=True)
        return
    print(json.dumps({"offered": offered}), flush=True)
    for provider in offered:
        if provider not in options.skip:
            print(finding_as_json(judge(provider, options.cores)), flush=True)


if __name__ == "__main__":
    main()
