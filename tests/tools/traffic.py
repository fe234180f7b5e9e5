"""What the tests of labs run on devices: a stream in one direction, and requests back and forth.

traffic.py receive ADDRESS | send ADDRESS SECONDS | answer ADDRESS | ask ADDRESS COUNT
"""

from __future__ import annotations

import socket
import statistics
import struct
import sys
import time
from contextlib import suppress

PORT = 5700
CHUNK_BYTES = 2**18
SETTLED_FRACTION = 0.3
"""Of the time of a stream: until then it may be finding its pace."""


def receive(address: str) -> None:
    """Print the bits per second that arrive once the stream has settled."""
    marks: list[tuple[float, int]] = []
    with socket.create_server((address, PORT)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
    total, chunk = 0, bytearray(CHUNK_BYTES)
    with connection, suppress(ConnectionResetError):
        while count := connection.recv_into(chunk):
            total += count
            marks.append((time.monotonic(), total))
    (first_s, _), (last_s, _) = marks[0], marks[-1]
    settled_s = first_s + SETTLED_FRACTION * (last_s - first_s)
    from_s, before = next(mark for mark in marks if mark[0] >= settled_s)
    print((total - before) * 8 / (last_s - from_s))


def send(address: str, seconds: float) -> None:
    """Send as fast as the network takes it, then break off."""
    with socket.create_connection((address, PORT)) as connection:
        connection.settimeout(0.5)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            with suppress(TimeoutError):
                connection.send(bytes(CHUNK_BYTES))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def answer(address: str) -> None:
    """Send back what comes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind((address, PORT))
        print("ready", flush=True)
        while True:
            own.sendto(*own.recvfrom(2048))


def ask(address: str, count: int) -> None:
    """Print the median seconds of a round trip, and "in order" if a burst came back so."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.settimeout(5)
        took_s = []
        for _ in range(count):
            start_s = time.monotonic()
            own.sendto(b"?", (address, PORT))
            own.recvfrom(2048)
            took_s.append(time.monotonic() - start_s)
        for number in range(count):
            own.sendto(b"%d" % number, (address, PORT))
        back = [int(own.recvfrom(2048)[0]) for _ in range(count)]
    print(statistics.median(took_s), "in order" if back == list(range(count)) else back)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["receive", where]:
            receive(where)
        case ["send", where, how_long]:
            send(where, float(how_long))
        case ["answer", where]:
            answer(where)
        case ["ask", where, how_often]:
            ask(where, int(how_often))
