"""Keys, ids and names of devices, and a secret key that tells nothing of itself."""

from __future__ import annotations

import base64
import hashlib
import logging

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.errors import UsageError
from edge_agent.peers import (
    KeyPair,
    Peer,
    PublicKey,
    SecretKey,
    base32,
    check_device_name,
    check_key,
    device_id,
    from_base32,
    name_from,
    public_key,
    raw_key,
)

RAW = bytes(range(32))
KEY = PublicKey("aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypq")
ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
KEY_WANTED = (
    "want a public key of 52 letters and digits, as `edge-agent key show` prints on the other "
    "device"
)
NAME_WANTED = "want 1 to 64 of A-Z a-z 0-9 . _ - beginning with a letter or digit"


@pytest.mark.parametrize(
    ("raw", "text"),
    [  # The test vectors of RFC 4648, section 10
        (b"", ""),
        (b"f", "my"),
        (b"fo", "mzxq"),
        (b"foo", "mzxw6"),
        (b"foob", "mzxw6yq"),
        (b"fooba", "mzxw6ytb"),
        (b"foobar", "mzxw6ytboi"),
    ],
)
def test_base32_is_that_of_the_rfc_in_lower_case_without_padding(raw: bytes, text: str) -> None:
    assert base32(raw) == text
    assert from_base32(text) == raw
    assert from_base32(text.upper()) == raw


@given(st.binary(max_size=80))
def test_bytes_of_any_length_come_back(raw: bytes) -> None:
    assert from_base32(base32(raw)) == raw


@pytest.mark.parametrize("length", [1, 2, 3, 4, 32])
def test_bits_beyond_the_bytes_are_refused(length: int) -> None:
    text = base32(b"\x00" * length)
    spare_bits = 5 * len(text) - 8 * length
    assert spare_bits > 0
    for value, letter in enumerate(ALPHABET):
        if value % 2**spare_bits:
            with pytest.raises(ValueError, match="the last character has bits beyond the bytes"):
                from_base32(text[:-1] + letter)
        else:
            assert len(from_base32(text[:-1] + letter)) == length


@pytest.mark.parametrize(
    "text",
    ["a", "aaa", "aaaaaa", "a1", "a8", "a=", "my======", "m y", "my\n", "mẞ", "ſa", "kı", "K2"],
)
def test_what_is_no_base32_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        from_base32(text)


@given(st.text(max_size=12) | st.text(ALPHABET, max_size=12))
@example("\ud800a")
def test_any_text_is_refused_or_is_what_its_bytes_are_written_as(text: str) -> None:
    try:
        raw = from_base32(text)
    except ValueError:
        return
    assert base32(raw) == text.lower()


def test_a_key_is_its_bytes_in_base32() -> None:
    assert public_key(RAW) == KEY
    assert raw_key(KEY) == RAW


def test_a_key_in_upper_case_is_the_same_key() -> None:
    assert check_key("key", KEY) == KEY
    assert check_key("key", KEY.upper()) == KEY


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", '""'),
        (None, "null"),
        (52, "52"),
        (KEY.encode(), repr(KEY.encode())),
        (KEY[:-1], f'"{KEY[:-1]}"'),
        (KEY + "a", f'"{KEY}a"'),
        (KEY[:-1] + "r", f'"{KEY[:-1]}r"'),
        (KEY[:-1] + "1", f'"{KEY[:-1]}1"'),
        (KEY[:-1] + "=", f'"{KEY[:-1]}="'),
        (" " + KEY[:-1], f'" {KEY[:-1]}"'),
        (KEY[:-1] + "\n", f'"{KEY[:-1]}\\n"'),
        ("é" * 52, '"' + "é" * 52 + '"'),
    ],
)
def test_what_is_no_key_is_refused_with_where_to_get_one(text: object, shown: str) -> None:
    with pytest.raises(UsageError) as told:
        check_key("key peers.pi2.key", text)
    assert str(told.value) == f"key peers.pi2.key: got {shown}, {KEY_WANTED}"


def test_zeros_are_no_key() -> None:
    with pytest.raises(UsageError) as told:
        check_key("key", public_key(bytes(32)))
    assert str(told.value) == "key: got zeros alone, which no device has for a key"


def test_the_id_is_the_beginning_of_the_fingerprint_of_the_key() -> None:
    # printf 000102…1f | xxd -r -p | sha256sum | xxd -r -p | base32
    digest = bytes.fromhex("630dcd2966c4336691125448bbb25b4ff412a49c732db2c8abc1b8581bd710dd")
    assert hashlib.sha256(RAW).digest() == digest
    assert (
        device_id(KEY) == base64.b32encode(digest).decode().lower()[:20] == "mmg42klgyqzwneiskrel"
    )
    assert KeyPair(public=KEY, secret=SecretKey(RAW)).device == "mmg42klgyqzwneiskrel"
    assert Peer(key=KEY, name="pi2").id == "mmg42klgyqzwneiskrel"


def test_a_peer_with_a_new_key_is_known_by_both_and_likelier_by_the_new_one() -> None:
    new = public_key(b"n" * 32)
    assert Peer(key=KEY, name="pi2").keys == (KEY,)
    assert Peer(key=KEY, name="pi2", next_key=new).keys == (new, KEY)


@pytest.mark.parametrize("name", ["a", "9", "A.b_c-d", "x" * 64, "mmg42klgyqzwneiskrel"])
def test_ordinary_names_are_allowed(name: str) -> None:
    assert check_device_name("name", name) == name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("", '""'),
        (".", '"."'),
        ("-a", '"-a"'),
        ("_a", '"_a"'),
        ("a b", '"a b"'),
        ("a/b", '"a/b"'),
        ("a\n", '"a\\n"'),
        ("ä", '"ä"'),
        ("x" * 65, '"' + "x" * 65 + '"'),
        (1, "1"),
        (None, "null"),
    ],
)
def test_other_names_are_refused(name: object, shown: str) -> None:
    with pytest.raises(UsageError) as told:
        check_device_name("--name", name)
    assert str(told.value) == f"--name: got {shown}, {NAME_WANTED}"


@pytest.mark.parametrize(
    ("hostname", "name"),
    [
        ("pi2", "pi2"),
        ("pi2.local", "pi2.local"),
        ("Anna's Laptop", "Anna-s-Laptop"),
        ("-._pi", "pi"),
        ("äpfel", "pfel"),
        ("pi\n", "pi-"),
        ("", "device"),
        ("äöü", "device"),
        ("." + "x" * 70, "x" * 64),
    ],
)
def test_a_device_calls_itself_after_its_hostname(hostname: str, name: str) -> None:
    assert name_from(hostname) == name


@given(st.text())
def test_any_hostname_gives_a_name_that_is_allowed(hostname: str) -> None:
    assert check_device_name("name", name_from(hostname))


def test_a_secret_key_tells_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    secret = SecretKey(b"\x5a-secret-of-thirty-two-bytes-\x01\x02!")
    pair = KeyPair(public=KEY, secret=secret)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("x").warning("%s %r %s %r", secret, secret, pair, [pair])
    written = [
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret!s:>20}",
        ascii([secret]),
    ]
    told = "".join([*written, repr(pair), str(pair), f"{pair}", caplog.text])
    assert str(secret) == repr(secret) == f"{secret}" == "SecretKey(…)"
    assert repr(pair) == f"KeyPair(public='{KEY}', secret=SecretKey(…))"
    for form in ("secret-of", secret.raw.hex(), base32(secret.raw), repr(secret.raw)[2:-1]):
        assert form not in told
    with pytest.raises(TypeError):
        msgspec.json.encode(pair)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_key_of_another_length_is_refused_without_telling_it(length: int) -> None:
    with pytest.raises(ValueError) as told:
        SecretKey(b"s" * length)
    assert str(told.value) == f"got a key of {length} bytes, want 32"
