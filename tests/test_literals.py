"""Values in messages look as they do in the files that have them."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.literals import literal, plain_text, unreadable

PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=20)


@given(PLAIN)
def test_a_value_of_a_json_file_can_be_read_again(value: object) -> None:
    shown = literal(value)
    assert shown.endswith("…") or json.loads(shown) == value


@pytest.mark.parametrize(
    "text",
    [
        *["true", "[1, 2.5]", '["a", "b c"]', "2026-11-29", "2026-11-29T10:00:00", "nan", "-inf"],
        *['{ value = "8 GiB", source = "sheet" }', "{}", "[]", '"a \\"b\\" c"', "07:32:00"],
    ],
)
def test_a_value_of_a_toml_file_looks_as_it_does_there(text: str) -> None:
    assert literal(tomllib.loads(f"x = {text}")["x"]) == text


def test_what_is_long_is_cut_off_and_what_no_terminal_shows_is_escaped() -> None:
    assert literal(10**4000) == "1" + "0" * 79 + "…"
    assert literal(1 << 20_000) == "a number of more than 4300 digits"
    assert literal("caf\udce9\n") == r'"caf\udce9\n"'
    assert literal("a" * 100) == '"' + "a" * 79 + "…"


def _problem(parse: object, text: str) -> str:
    with pytest.raises((ValueError, RecursionError)) as caught:
        parse(text)  # type: ignore[operator]
    return unreadable(caught.value)


@pytest.mark.parametrize(
    ("parse", "long", "deep"),
    [
        (json.loads, "9" * 5_000, "[" * 100_000),
        (tomllib.loads, "x = " + "9" * 5_000, "x = " + "[" * 100_000),
    ],
)
def test_what_python_cannot_read_is_told_in_words_of_the_file(
    parse: object, long: str, deep: str
) -> None:
    assert _problem(parse, long) == "it has a number of more than 4300 digits"
    assert _problem(parse, deep) == "its tables or lists are nested too deep"


def test_what_is_wrong_elsewhere_is_told_as_the_parser_does() -> None:
    assert "line 1" in _problem(json.loads, "{")
    assert "line 1" in _problem(tomllib.loads, "x = =")


def test_what_others_say_is_one_line_that_no_terminal_obeys() -> None:
    said = "up\x1b[2J\nfake  row\t\x07\u202e é"
    assert plain_text(said) == "up�[2J�fake  row��� é"
    assert plain_text("x" * 401) == "x" * 400 + "…"
