"""How the commands print: JSON, tables, human units, progress."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import msgspec

from edge_agent.client import Client
from edge_agent.config import Settings, load_settings

SLOW_S = 2.0
_MOST_READ = 65536


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the options of a command give."""
    return load_settings(
        os.environ,
        socket=options.socket,
        state=getattr(options, "state", None),
        config_file=options.config,
    )


def client_of(options: argparse.Namespace) -> Client:
    """A client of the agent that the options of a command name."""
    named = options.socket if options.config is None else settings_of(options).socket
    return Client(named)


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Have SIGTERM end the block as Ctrl-C does, so that what is half written goes."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def token_of(text: str) -> str:
    """A token as it was given, or the first line of standard input for "-"."""
    if text != "-":
        return text
    # What is no text is no token, and is not to be shown.
    return sys.stdin.buffer.readline(_MOST_READ).decode(errors="replace")


@contextmanager
def told_if_slow(what: str) -> Iterator[None]:
    """Say on standard error what is being waited for, if that takes longer than people like to
    wait without a word."""
    timer = threading.Timer(SLOW_S, lambda: print(what, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), flush=True)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need, on standard output."""
    table = [list(titles), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(titles))]
    for row in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(line.rstrip())


def count_text(count: int, what: str) -> str:
    """A count of something whose plural takes an s: "1 request", "2 requests"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def size_text(size_bytes: int | None) -> str:
    """Bytes in the unit that a person would use."""
    if size_bytes is None:
        return "-"
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes every size")


class ProgressLine:
    """Tells on standard error how far something is: one line rewritten on a terminal, a new
    line for every new step elsewhere."""

    def __init__(self) -> None:
        self._last = ""
        self._is_terminal = sys.stderr.isatty()

    def show(self, fraction: float, what: str) -> None:
        """Show the present state, if it is news."""
        if self._is_terminal:
            text = f"{fraction:4.0%} {what}"
            if text != self._last:
                sys.stderr.write(f"\r\x1b[K{text[:110]}")
                sys.stderr.flush()
                self._last = text
        elif what != self._last:
            print(f"{fraction:4.0%} {what}", file=sys.stderr, flush=True)
            self._last = what

    def end(self) -> None:
        """Leave the line."""
        if self._is_terminal and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class PatientProgress:
    """Tells what is going on as `ProgressLine` does, but only of what takes long: from `patience_s`
    after the start on. Use as a context manager; no thread of it is left behind."""

    def __init__(self, patience_s: float = 1.0) -> None:
        self._patience_s = patience_s
        self._line = ProgressLine()
        self._present: tuple[float, str] = (0.0, "")
        self._is_over = threading.Event()
        self._is_shown = False
        self._lock = threading.Lock()
        self._waiting = threading.Thread(target=self._wait, name="progress", daemon=True)

    def say(self, what: str, fraction: float = 0.0) -> None:
        """What begins now, and how much of it all is done."""
        with self._lock:
            self._present = fraction, what
            if self._is_shown:
                self._line.show(*self._present)

    def _wait(self) -> None:
        if self._is_over.wait(self._patience_s):
            return
        with self._lock:
            if not self._is_over.is_set():
                self._is_shown = True
                self._line.show(*self._present)

    def end(self) -> None:
        """Leave the line; may be called again."""
        with self._lock:
            self._is_over.set()
            if self._is_shown:
                self._line.end()
            self._is_shown = False

    def __enter__(self) -> Self:
        self._waiting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._waiting.join()
