"""How sequences, maps and optionals look as bytes: MessagePack, tensors inside as raw bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from edge_agent.errors import InputMismatch, ProtocolError
from edge_agent.tensors import Array
from edge_agent.wire.parts import TensorHead

Scalar = int | float | str
PackArray = Callable[[str, Array], tuple[TensorHead, memoryview]]
UnpackArray = Callable[[TensorHead, memoryview], Array]


class _Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tensor"):
    head: TensorHead
    data: bytes


class _Sequence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sequence"):
    items: tuple[_Tensor | _Sequence | _Map | _Nothing, ...]


class _Map(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="map"):
    pairs: tuple[tuple[int | str, Scalar], ...]


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="nothing"):
    pass


_Node = _Tensor | _Sequence | _Map | _Nothing


def pack_nested(name: str, value: Any, pack_array: PackArray) -> bytes:
    """A list of arrays, a dict of numbers or texts, None, or a list of these.

    Raises:
        InputMismatch: something in it is none of these.
    """
    return msgspec.msgpack.encode(_node(name, value, pack_array))


def _node(name: str, value: Any, pack_array: PackArray) -> _Node:
    match value:
        case None:
            return _Nothing()
        case list() | tuple():
            return _Sequence(tuple(_node(name, item, pack_array) for item in value))
        case np.ndarray() | np.generic():
            head, data = pack_array(name, np.asarray(value))
            return _Tensor(head, bytes(data))
        case Mapping():
            return _Map(tuple((_scalar(name, k), _scalar(name, v)) for k, v in value.items()))
        case _:
            raise InputMismatch(
                f'value "{name}": got a {type(value).__name__} in it, want arrays, dicts, or lists '
                "of these"
            )


def _scalar(name: str, value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, (int, float, str)) and not isinstance(plain, bool):
        return plain
    raise InputMismatch(
        f'value "{name}": got a {type(value).__name__} in a map, want numbers or texts'
    )


def unpack_nested(head: TensorHead, data: memoryview, unpack_array: UnpackArray) -> Any:
    """The inverse of `pack_nested`.

    Raises:
        ProtocolError: these bytes are no such value.
    """
    try:
        return _value(msgspec.msgpack.decode(data, type=_Node), unpack_array)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f'value "{head.name}" is not understood: {error}') from error


def _value(node: _Node, unpack_array: UnpackArray) -> Any:
    match node:
        case _Tensor(head=head, data=data):
            return unpack_array(head, memoryview(bytearray(data)))
        case _Sequence(items=items):
            return [_value(item, unpack_array) for item in items]
        case _Map(pairs=pairs):
            return dict(pairs)
        case _:
            return None
