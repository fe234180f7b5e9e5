"""Invitation tokens: each comes back whole, and no wrong one is taken or told."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.endpoints import Endpoint
from edge_agent.errors import UsageError
from edge_agent.peers import MAX_ENDPOINTS, SecretKey, base32, from_base32, public_key
from edge_agent.wire.tokens import Token, read_token, write_token

SECRET = bytes(range(100, 132))
TOKEN = Token(
    key=public_key(bytes(range(32))),
    name="pi1",
    endpoints=(Endpoint(host="192.168.1.20", port=7600), Endpoint(host="fd00::1", port=7600)),
    secret=SecretKey(SECRET),
)
TEXT = write_token(TOKEN)
COPY = "; copy the whole line that `edge-agent invite` printed on the other device"
NO_TOKEN = f"token: that is no token{COPY}"
OTHER = f"token: it is of another version of edge-agent: use the same on both devices{COPY}"
NOTHING = f"token: got nothing, as where standard input is empty{COPY}"
NOT_WHOLE = f"token: it is not whole, or has a wrong character{COPY}"


def same(token: Token, other: Token) -> bool:
    """Secrets have no equality of their own."""
    bare = replace(token, secret=other.secret)
    return bare == other and token.secret.raw == other.secret.raw


def checked(content: bytes) -> str:
    """A token around any content."""
    return "edge1" + base32(content + hashlib.sha256(content).digest()[:4])


def packed(*fields: Any) -> str:
    return checked(msgspec.msgpack.encode(list(fields)))


def refused(text: str) -> str:
    with pytest.raises(UsageError) as told:
        read_token(text)
    return str(told.value)


def test_a_token_is_one_word_that_comes_back_as_it_was() -> None:
    assert re.fullmatch(r"edge1[a-z2-7]{197}", TEXT)
    assert same(read_token(TEXT), TOKEN)


def test_the_form_of_a_token_does_not_change() -> None:
    content = msgspec.msgpack.encode(
        [bytes(range(32)), "pi1", ["tcp://192.168.1.20:7600", "tcp://[fd00::1]:7600"], SECRET]
    )
    assert checked(content) == TEXT


def test_a_token_of_a_device_with_many_long_addresses_is_read() -> None:
    host = "2001:db8:1111:2222:3333:4444:5555:"
    ends = tuple(Endpoint(host=f"{host}{n:04x}", port=65535) for n in range(MAX_ENDPOINTS))
    token = replace(TOKEN, name="x" * 64, endpoints=ends)
    assert same(read_token(write_token(token)), token)


@given(st.data())
def test_spaces_and_line_breaks_are_ignored_wherever_they_are(data: st.DataObject) -> None:
    text = TEXT
    for space in data.draw(
        st.lists(st.sampled_from([" ", "\n", "\r\n", "\t", "\u00a0"]), max_size=5)
    ):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + space + text[at:]
    assert same(read_token(text), TOKEN)


def test_letters_may_have_become_capitals_behind_the_version() -> None:
    assert same(read_token("edge1" + TEXT[5:].upper()), TOKEN)


def test_every_other_character_in_any_place_is_refused() -> None:
    for at, present in enumerate(TEXT):
        for other in "abcdefghijklmnopqrstuvwxyz0123456789=-é":
            if other == present:
                continue
            told = refused(TEXT[:at] + other + TEXT[at + 1 :])
            if at < 4:
                assert told == NO_TOKEN
            elif at == 4:
                assert told == (OTHER if other.isdigit() else NO_TOKEN)
            else:
                assert told == NOT_WHOLE


def test_a_character_that_is_left_out_doubled_or_swapped_is_refused() -> None:
    for at in range(5, len(TEXT)):
        assert refused(TEXT[:at] + TEXT[at + 1 :]) == NOT_WHOLE
        assert refused(TEXT[:at] + TEXT[at] + TEXT[at:]) == NOT_WHOLE
        swapped = TEXT[: at - 1] + TEXT[at] + TEXT[at - 1] + TEXT[at + 1 :]
        if at > 5 and swapped != TEXT:
            assert refused(swapped) == NOT_WHOLE


def test_a_token_cut_short_anywhere_is_refused() -> None:
    for length in range(len(TEXT)):
        begin = NOTHING if not length else NO_TOKEN if length < 10 else NOT_WHOLE
        assert refused(TEXT[:length]) == begin
        end = TEXT[length + 1 :]
        assert refused(end) == (NO_TOKEN if end else NOTHING)


@pytest.mark.parametrize("text", [TEXT + TEXT, TEXT + "a", TEXT + "=", "edge1" + "a" * 4091])
def test_more_than_a_token_is_refused(text: str) -> None:
    assert refused(text) == NOT_WHOLE


def test_nothing_is_told_apart_from_what_is_no_token() -> None:
    assert refused("") == refused(" \n") == NOTHING


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "edge1",
        "edge1aaaa",
        "edge1" + "a" * 4092,
        TEXT.upper(),
        "edge" + TEXT[5:],
        f"edge-agent serve --join {TEXT}",
        f"Edge1{TEXT[5:]}",
    ],
)
def test_what_does_not_look_like_a_token_is_called_none(text: str) -> None:
    assert refused(text) == NO_TOKEN


@pytest.mark.parametrize("version", ["0", "2", "9"])
def test_another_version_is_told(version: str) -> None:
    assert refused(f"edge{version}{TEXT[5:]}") == OTHER


KEY, ENDS = bytes(32), ["tcp://pi1:7600"]


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (KEY, "pi1", ENDS),
        (KEY, "pi1", ENDS, SECRET, 1),
        (KEY[1:], "pi1", ENDS, SECRET),
        (KEY, "pi1", ENDS, SECRET + b"x"),
        (KEY, "pi1", [], SECRET),
        (KEY, "pi1", ENDS * (MAX_ENDPOINTS + 1), SECRET),
        (KEY, 1, ENDS, SECRET),
        (KEY, "pi1", [1], SECRET),
        ("k" * 32, "pi1", ENDS, None),
    ],
)
def test_a_token_with_other_fields_is_refused(fields: tuple[Any, ...]) -> None:
    assert refused(packed(*fields)) == NOT_WHOLE


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x91" * 2500, b"\xc1", b"\x94"])
def test_a_token_with_content_of_another_form_is_refused(content: bytes) -> None:
    assert refused(checked(content)) in (NOT_WHOLE, NO_TOKEN)


def test_content_behind_the_content_is_refused() -> None:
    assert refused(checked(from_base32(TEXT[5:])[:-4] + b"\xc0")) == NOT_WHOLE


def test_a_bad_name_in_a_token_is_told() -> None:
    assert refused(packed(KEY, "../x", ENDS, SECRET)) == (
        'token: name: got "../x", want 1 to 64 of A-Z a-z 0-9 . _ - beginning with a letter or '
        "digit"
    )


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:7600", "tcp://pi1:0"])
def test_a_bad_address_in_a_token_is_told(address: str) -> None:
    assert refused(packed(KEY, "pi1", [*ENDS, address], SECRET)) == (
        f'token: address: got "{address}", want the address and port at which the other agent '
        "listens"
    )


@given(st.binary(max_size=120), st.booleans())
@example(b"", True)
def test_random_bytes_are_no_token(raw: bytes, is_checked: bool) -> None:
    text = checked(raw) if is_checked else "edge1" + base32(raw)
    assert refused(text) in (NOT_WHOLE, NO_TOKEN)


@given(st.text())
@example("edge1\ud800aaaaaaaaa")
def test_any_text_is_refused_without_telling_it(text: str) -> None:
    assert refused(text) in (NOT_WHOLE, NO_TOKEN, OTHER, NOTHING)


def test_neither_a_token_nor_what_is_refused_of_one_tells_the_secret() -> None:
    with pytest.raises(UsageError) as told:
        read_token(TEXT[:-1])
    assert told.value.__suppress_context__
    assert "secret=SecretKey(…)" in repr(read_token(TEXT))
    for form in (repr(SECRET)[2:-1], SECRET.hex(), base32(SECRET)):
        assert form not in repr(read_token(TEXT))
