"""Values as they stand in TOML and JSON files, for messages about such files."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping

_MOST_SHOWN = 80


def literal(value: object) -> str:
    """The value as its file has it, or its beginning if it is long: `true`, `null`, `"a"`."""
    text = _whole(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _whole(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            # What UTF-8 cannot hold could be neither sent nor printed.
            shown = json.dumps(value, ensure_ascii=False)
            return shown.encode(errors="backslashreplace").decode()
        case int():
            try:
                return str(value)
            except ValueError:
                # Hexadecimal ones can be that long.
                return too_long()
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case list() | tuple():
            return f"[{', '.join(map(_whole, value))}]"
        case Mapping():
            pairs = (f"{key} = {_whole(one)}" for key, one in value.items())
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
        case _:
            return repr(value)


def plain_text(text: str, most: int = 400) -> str:
    """What somebody else says, on one line and without what a terminal would obey."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:most])
    return shown if len(text) <= most else f"{shown}…"


def too_long() -> str:
    """A number that Python does not read."""
    return f"a number of more than {sys.get_int_max_str_digits()} digits"


def unreadable(error: ValueError | RecursionError) -> str:
    """What is wrong with a file that could not be parsed, to follow a colon."""
    if isinstance(error, RecursionError):
        return "its tables or lists are nested too deep"
    # Parsers have errors of their own; this one is of Python's int().
    if type(error) is ValueError and "digits" in str(error):
        return f"it has {too_long()}"
    return str(error)
