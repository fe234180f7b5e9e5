"""The frames of the local socket, spelled out byte by byte, to send wrong ones as well."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

PREFIX = struct.Struct("<4sIQ")
ANSWER_S = 10.0


class RawConnection:
    """A connection to an agent. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self._stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._stream.settimeout(ANSWER_S)
        self._stream.connect(str(path))

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()

    @staticmethod
    def prefix(message_bytes: int, payload_bytes: int) -> bytes:
        """The announcement of a message and a payload."""
        return PREFIX.pack(b"EAG\x01", message_bytes, payload_bytes)

    @classmethod
    def framed(
        cls, message: Mapping[str, Any], payload: bytes = b"", announced: int | None = None
    ) -> bytes:
        """A frame; `announced` is the length of the payload that it claims to have."""
        encoded = msgspec.msgpack.encode(message)
        size = len(payload) if announced is None else announced
        return cls.prefix(len(encoded), size) + encoded + payload

    def send(self, message: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send a right frame."""
        self._stream.sendall(self.framed(message, payload))

    def send_bytes(self, content: bytes) -> None:
        """Send anything; the agent may close the connection meanwhile."""
        try:
            self._stream.sendall(content)
        except (BrokenPipeError, ConnectionResetError):
            return

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next message of the agent, and its payload."""
        _, message_bytes, payload_bytes = PREFIX.unpack(self._exactly(PREFIX.size))
        message = msgspec.msgpack.decode(self._exactly(message_bytes))
        return message, self._exactly(payload_bytes)

    def _exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            part = self._stream.recv(count - len(got))
            assert part, "the agent closed the connection"
            got += part
        return got

    def is_closed_by_the_agent(self) -> bool:
        """Whether the agent ends the connection, after whatever it has to say."""
        self._stream.settimeout(1.0)
        try:
            while self._stream.recv(65536):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True
