"""What the tables of a device profile are made of, checked: texts, numbers, sourced values."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NoReturn, TypeGuard, TypeVar

from edge_agent.errors import UsageError
from edge_agent.hardware import Source, Sourced
from edge_agent.literals import literal
from edge_agent.quantities import Measure, parse

Table = Mapping[str, object]
_LEAST_SHARE = 1e-6
_Choice = TypeVar("_Choice", bound=StrEnum)


class Fields:
    """Reads keys of a file's tables. A key is named in full, as `units.cpu.cores`; `table` is the
    innermost one, which has the last part of it. All raise UsageError."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.sources: dict[str, Source] = {}

    def needed(self, key: str, table: Table, measure: Measure, *, above: bool = False) -> Sourced:
        """A quantity that must be there; `above`: it must not be 0."""
        want = f'{measure.name}, as {{ value = "{measure.example}", source = "…" }}'
        value = self.required(key, table, want)
        text, source = self.pair(key, value, want)
        if not isinstance(text, str):
            self.refuse(key, text, f'{measure.name} as in "{measure.example}"')
        try:
            number = parse(text, measure)
        except ValueError as error:
            raise UsageError(f"{self.file}: key {key}: {error}") from None
        if above and not number:
            self.refuse(key, text, f"{measure.name} above 0")
        return Sourced(value=number, source=source)

    def optional(
        self, key: str, table: Table, measure: Measure, *, above: bool = False
    ) -> Sourced | None:
        """A quantity, or None if the key is not there."""
        is_there = key.rsplit(".", 1)[-1] in table
        return self.needed(key, table, measure, above=above) if is_there else None

    def pair(self, key: str, value: object, want: str) -> tuple[object, Source]:
        """Value and source of `{ value = …, source = "…" }`."""
        if not isinstance(value, dict):
            self.refuse(key, value, f"{want}; every value names its source")
        self.check_keys(f"{key}.", value, ("value", "source"))
        number = self.required(f"{key}.value", value, want)
        source = self.required(f"{key}.source", value, "the key of a source, as [sources.KEY]")
        return number, self.source_of(f"{key}.source", source)

    def source_of(self, key: str, value: object) -> Source:
        """The source that a key names."""
        if not isinstance(value, str):
            self.refuse(key, value, "the key of a source in quotes, as of [sources.KEY]")
        if value not in self.sources:
            known = ", ".join(self.sources) or "none"
            close = close_to(value, self.sources)
            raise UsageError(
                f"{self.file}: key {key}: got {literal(value)}, want a source of the file: there "
                f"{'is' if len(self.sources) < 2 else 'are'} {known}{close}; add "
                f"[sources.{value}], or name another"
            )
        return self.sources[value]

    def text(
        self,
        key: str,
        table: Table,
        pattern: re.Pattern[str] | None = None,
        want: str = "a text in quotes",
    ) -> str:
        """A text that must be there and match `pattern`."""
        value = self.required(key, table, want)
        if not isinstance(value, str) or not value.strip():
            self.refuse(key, value, want)
        if pattern is not None and not pattern.fullmatch(value):
            self.refuse(key, value, want)
        return value

    def chosen(self, key: str, table: Table, choices: type[_Choice]) -> tuple[_Choice, ...]:
        """A list of choices, each once; () if the key is not there."""
        name = key.rsplit(".", 1)[-1]
        value = table.get(name, [])
        if not isinstance(value, list) or (name in table and not value):
            self.refuse(key, value, f"a list of {choices_of(choices)}")
        found = tuple(self.choice(key, one, choices) for one in value)
        if len(set(found)) < len(found):
            self.refuse(key, value, "each once")
        return found

    def choice(self, key: str, value: object, choices: type[_Choice]) -> _Choice:
        """One of `choices`."""
        try:
            return choices(str(value))
        except ValueError:
            self.refuse(
                key, value, f"one of {choices_of(choices)}{close_to(str(value), list(choices))}"
            )

    def flag(self, key: str, value: object) -> bool:
        """A truth value."""
        if not isinstance(value, bool):
            self.refuse(key, value, "true or false")
        return value

    def plain(self, key: str, value: object, *, most: float) -> float:
        """A number of at least 0 without a unit."""
        if not is_number(value) or not 0 <= value <= most:
            self.refuse(key, value, f"a number from 0 to {most:g}")
        return float(value)

    def whole(self, key: str, value: object, *, least: int, most: int | None = None) -> int:
        """A whole number."""
        # A TOML boolean is a Python int too.
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.refuse(key, value, f"a whole number of at least {least}")
        if most is not None and value > most:
            self.refuse(key, value, f"a whole number of at most {most}")
        return value

    def wholes(self, key: str, value: object, least: int = 0) -> tuple[int, ...]:
        """A list of whole numbers."""
        if not isinstance(value, list):
            self.refuse(key, value, "a list of whole numbers")
        return tuple(self.whole(key, one, least=least) for one in value)

    def table(self, key: str, value: object) -> dict[str, object]:
        """A table."""
        if not isinstance(value, dict):
            self.refuse(key, value, "a table")
        return value

    def required(self, key: str, table: Table, want: str) -> object:
        """The value of a key that must be there."""
        name = key.rsplit(".", 1)[-1]
        if name not in table:
            self.missing(key, want)
        return table[name]

    def check_keys(self, prefix: str, table: Table, known: Collection[str]) -> None:
        """See that a table has no other keys; `prefix` is where it is."""
        for key in table:
            if key not in known:
                raise UsageError(
                    f"{self.file}: key {prefix}{key}: is unknown, want one of "
                    f"{', '.join(known)}{close_to(key, known)}"
                )

    def missing(self, key: str, want: str) -> NoReturn:
        """Say that a key is not there."""
        raise UsageError(f"{self.file}: key {key}: is missing, want {want}; add it")

    def refuse(self, key: str, value: object, want: str) -> NoReturn:
        """Say what a key has and what it should have."""
        raise UsageError(f"{self.file}: key {key}: got {literal(value)}, want {want}")

    def share(self, key: str, value: object) -> Sourced:
        """A sourced number of at least 1e-6, to 1."""
        want = f"a share of the peak, {_LEAST_SHARE:g} to 1"
        number, source = self.pair(key, value, want)
        if not is_number(number) or not _LEAST_SHARE <= number <= 1:
            self.refuse(key, number, want)
        return Sourced(value=float(number), source=source)

    def count(self, key: str, table: Table, *, most: int) -> Sourced:
        """A sourced whole number of at least 1."""
        want = "a whole number of at least 1"
        number, source = self.pair(key, self.required(key, table, want), want)
        return Sourced(value=self.whole(key, number, least=1, most=most), source=source)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number; a TOML boolean is none, though it is a Python int."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def choices_of(choices: type[StrEnum]) -> str:
    """What there is to choose from, for messages."""
    return ", ".join(choices)


def close_to(text: str, known: Collection[str]) -> str:
    """The end of a message that names what was probably meant; "" if nothing is like it."""
    found = difflib.get_close_matches(text, [str(one) for one in known], n=1)
    return f"; did you mean {found[0]}?" if found else ""
