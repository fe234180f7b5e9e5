"""`python -m edge_agent.cli`: the same as `edge-agent`."""

import sys

from edge_agent.cli.start import main

sys.exit(main())
