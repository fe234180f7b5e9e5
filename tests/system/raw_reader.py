"""Writes all that the interfaces of this network namespace carry to a file, until SIGTERM.

raw_reader.py FILE
"""

from __future__ import annotations

import select
import signal
import socket
import sys
from contextlib import suppress

EVERY_PROTOCOL = 3
"""ETH_P_ALL"""
BUFFER_BYTES = 64 << 20
FORCED_BUFFER = 33
"""SO_RCVBUFFORCE"""
ORDER_BYTES = socket.htons(EVERY_PROTOCOL)


def main(path: str) -> None:
    """Read until told to stop, and then what is still there."""
    reader = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, ORDER_BYTES)
    reader.setsockopt(socket.SOL_SOCKET, FORCED_BUFFER, BUFFER_BYTES)
    reader.setblocking(False)
    stop, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None)
    with open(path, "wb", buffering=1 << 20) as file:
        print("ready", flush=True)
        is_told = False
        while not is_told:
            ready, _, _ = select.select([reader, stop], [], [])
            is_told = stop in ready
            with suppress(BlockingIOError):
                while True:
                    file.write(reader.recv(1 << 17))


if __name__ == "__main__":
    main(sys.argv[1])
