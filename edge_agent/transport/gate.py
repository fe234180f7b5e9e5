"""Who may connect: the ZAP handler (ZeroMQ RFC 27) of one context, which fails closed.

libzmq asks before it takes a connection. Only CURVE is admitted, and only a key that the gate's
judge admits to the socket's domain; whoever is admitted is known by its key in every frame.
pyzmq's own handler admits connections without any encryption, and needs an event loop.
"""

from __future__ import annotations

from collections.abc import Callable

import zmq

from edge_agent.peers import KEY_BYTES, PublicKey, public_key

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_MOST_A_TURN = 32

Judge = Callable[[bytes, PublicKey, str], bool]
"""Whether a key is admitted to a domain; the third is the address that it comes from."""


class Gate:
    """Answers libzmq's questions; one thread uses it, and calls `serve` when `socket` has input."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], judge: Judge) -> None:
        self.socket = context.socket(zmq.ROUTER)
        """To poll for input."""
        self.socket.linger = 0
        self.socket.bind(_ADDRESS)
        self._judge = judge

    def serve(self) -> None:
        """Answer what is asked now, up to a turn's worth."""
        for _ in range(_MOST_A_TURN):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._answer(frames)

    def _answer(self, frames: list[bytes]) -> None:
        start = frames.index(b"") + 1
        # version, request, domain, address, routing id, mechanism, and what it brings
        question = frames[start:]
        request = question[1] if len(question) > 1 else b""
        key = self._admitted(question[2:]) if question[:1] == [_VERSION] else None
        status, text = (b"400", b"not admitted") if key is None else (b"200", b"OK")
        user = b"" if key is None else key.encode()
        answer = [*frames[:start], _VERSION, request, status, text, user, b""]
        self.socket.send_multipart(answer, zmq.NOBLOCK)

    def _admitted(self, asked: list[bytes]) -> PublicKey | None:
        if len(asked) != 5:
            return None
        domain, address, _, mechanism, credential = asked
        if mechanism != b"CURVE" or len(credential) != KEY_BYTES:
            return None
        key = public_key(credential)
        return key if self._judge(domain, key, address.decode(errors="replace")) else None

    def close(self) -> None:
        """Admit nobody any more."""
        self.socket.close()
