"""Shared libraries that misbehave when they are loaded, made without a compiler: ELF64 for Linux on
x86-64 and aarch64, with an initialiser of a few instructions and nothing else."""

from __future__ import annotations

import platform
import struct
from enum import StrEnum
from pathlib import Path


class Loading(StrEnum):
    """What happens when a library is loaded."""

    RETURNS = "returns"
    """It is there, and brings nothing."""
    ILLEGAL = "an illegal instruction"
    NULL_ACCESS = "an access to address 0"
    WAITS = "waits for ever"


_CODE = {
    "x86_64": {
        Loading.RETURNS: "c3",
        Loading.ILLEGAL: "0f0b",
        Loading.NULL_ACCESS: "31c0 8900",
        # pause(2), again and again.
        Loading.WAITS: "b822000000 0f05 ebf7",
    },
    "aarch64": {
        Loading.RETURNS: "c0035fd6",
        Loading.ILLEGAL: "00000000",
        Loading.NULL_ACCESS: "000080d2 000000b9",
        # ppoll(2) of nothing without an end, again and again.
        Loading.WAITS: "000080d2 010080d2 020080d2 030080d2 280980d2 010000d4 faffff17",
    },
}
_MACHINES = {"x86_64": 62, "aarch64": 183}
_PAGE = 0x10000
"""aarch64 may have pages of 64 KiB."""
_CODE_AT = 0x200
_HASH_AT, _STRINGS_AT, _SYMBOLS_AT, _DYNAMIC_AT = (_PAGE + at for at in (0, 0x20, 0x40, 0x80))
_END = _DYNAMIC_AT + 0x100
_SHARED_OBJECT, _LOAD, _DYNAMIC, _STACK = 3, 1, 2, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_INIT = 4, 5, 6, 10, 11, 12


def make_library(path: Path, loading: Loading, machine: str | None = None) -> Path:
    """Write a library that does `loading`, for this machine unless another is named.

    The format: System V ABI, chapters 4 and 5, and ELF-64 Object File Format, version 1.5.
    """
    machine = machine or platform.machine()
    made = bytearray(_END)

    def put(at: int, layout: str, *values: int | bytes) -> None:
        struct.pack_into(f"<{layout}", made, at, *values)

    identity = b"\x7fELF" + bytes([2, 1, 1])
    put(0, "16sHHIQQQIHHH", identity, _SHARED_OBJECT, _MACHINES[machine], 1, 0, 64, 0, 0, 64, 56, 4)
    put(58, "HHH", 64, 0, 0)
    segments = (
        (_LOAD, _READ | _EXECUTE, 0, _PAGE),
        (_LOAD, _READ | _WRITE, _PAGE, _END - _PAGE),
        (_DYNAMIC, _READ | _WRITE, _DYNAMIC_AT, _END - _DYNAMIC_AT),
        (_STACK, _READ | _WRITE, 0, 0),
    )
    for i, (kind, flags, at, size) in enumerate(segments):
        put(64 + 56 * i, "IIQQQQQQ", kind, flags, at, at, at, size, size, _PAGE)
    code = bytes.fromhex(_CODE[machine][loading])
    made[_CODE_AT : _CODE_AT + len(code)] = code
    # One bucket and one symbol, the one without a name that every table begins with.
    put(_HASH_AT, "IIII", 1, 1, 0, 0)
    entries = (
        (_DT_HASH, _HASH_AT),
        (_DT_STRTAB, _STRINGS_AT),
        (_DT_SYMTAB, _SYMBOLS_AT),
        (_DT_STRSZ, 1),
        (_DT_SYMENT, 24),
        (_DT_INIT, _CODE_AT),
    )
    for i, entry in enumerate(entries):
        put(_DYNAMIC_AT + 16 * i, "QQ", *entry)
    path.write_bytes(made)
    return path
