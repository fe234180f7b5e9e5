"""Where the command starts: an interruption is told in one line from the first moment on.

Nothing else is imported before, because imports take up to half a second on a busy device.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line of this process; its exit code."""
    try:
        from edge_agent.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("edge-agent: interrupted", file=sys.stderr)
        return 130
