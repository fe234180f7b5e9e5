"""A lab: several devices on one machine, each with a network, cores and memory of its own.

with lab.Lab(devices=2, links="0-1=10Mbit/20ms", cores=(0, 1)) as made:
    with made.popen(0, ["edge-agent", "serve"]) as agent:
        print(made.address(0), agent.pid)
"""

from lab.errors import LabError, UsageError
from lab.labs import Lab
from lab.options import Device, Link

__all__ = ["Device", "Lab", "LabError", "Link", "UsageError"]
