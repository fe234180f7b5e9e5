"""Connects to an address without a key that is admitted there, and prints what came of it as JSON:
how many bytes were received, and of those how many beyond the greeting of ZMTP.

no_key.py ADDRESS PORT KIND [SERVER_KEY]: KIND is plain (nothing is sent), text, null or unknown
"""

from __future__ import annotations

import json
import socket
import sys
import time
from contextlib import suppress

import zmq

from edge_agent.peers import PublicKey
from edge_agent.transport.curve import encrypt_as_client, make_keys

LISTEN_S = 1.5
TEXT = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
GREETING_BYTES = 64


def main(address: str, port: int, kind: str, server: str = "") -> None:
    """Try it, and tell."""
    if kind in ("plain", "text"):
        found = _raw(address, port, TEXT if kind == "text" else b"")
    else:
        found = _zmq(address, port, server if kind == "unknown" else "")
    print(json.dumps(found))


def _raw(address: str, port: int, say: bytes) -> dict[str, int]:
    got = b""
    until_s = time.monotonic() + LISTEN_S
    with socket.create_connection((address, port), 2.0) as connection:
        connection.settimeout(0.2)
        # It may be ended by the other side.
        with suppress(ConnectionError):
            connection.sendall(say)
            while time.monotonic() < until_s:
                with suppress(TimeoutError):
                    came = connection.recv(1 << 16)
                    if not came:
                        break
                    got += came
    return {"received": len(got), "beyond_greeting": max(len(got) - GREETING_BYTES, 0)}


def _zmq(address: str, port: int, server: str) -> dict[str, int]:
    context = zmq.Context()
    asking = context.socket(zmq.DEALER)
    asking.linger = 0
    if server:
        encrypt_as_client(asking, make_keys(), PublicKey(server))
    asking.connect(f"tcp://{address}:{port}")
    received = 0
    with suppress(zmq.Again):
        asking.send(b"hello", zmq.NOBLOCK)
    if asking.poll(1000 * LISTEN_S):
        received = sum(map(len, asking.recv_multipart()))
    context.destroy()
    return {"received": received, "beyond_greeting": received}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
