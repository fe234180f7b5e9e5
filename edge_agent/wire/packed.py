"""Named arrays in one piece, as samples are kept and sent."""

from __future__ import annotations

import msgspec

from edge_agent.errors import ProtocolError, StorageError
from edge_agent.tensors import Arrays
from edge_agent.wire.arrays import pack_arrays, unpack_arrays
from edge_agent.wire.frames import joined_frame, whole_frame
from edge_agent.wire.parts import TensorHeads


class _Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    tensors: TensorHeads


def pack_sample(name: str, arrays: Arrays) -> bytes:
    """The arrays, and what they are called together."""
    heads, tensors = pack_arrays(arrays)
    return joined_frame(msgspec.msgpack.encode(_Packed(name, heads)), tensors)


def unpack_sample(content: bytes) -> tuple[str, Arrays]:
    """What `pack_sample` wrote.

    Raises: StorageError: it was written by another version.
    """
    try:
        frame = whole_frame(memoryview(content))
        if frame is None:
            raise ProtocolError("it is cut short")
        packed = msgspec.msgpack.decode(frame[0], type=_Packed)
        return packed.name, unpack_arrays(packed.tensors, frame[1])
    except (msgspec.DecodeError, ProtocolError) as error:
        raise StorageError(f"a sample is of another version: {error}") from error
