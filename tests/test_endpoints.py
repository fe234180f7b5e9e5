"""Addresses of agents: what is taken, what is refused in which words, and what is printed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.endpoints import Endpoint, parse_endpoint, parse_listen, parse_peer_endpoint
from edge_agent.errors import UsageError

WANT = "want tcp://ADDRESS:PORT, e.g. tcp://192.168.1.20:7600"
WANT_HOST = "want an IP address or the name of a host before the port"
WANT_OWN = "want an IP address of this device to listen at, or 0.0.0.0 or [::] for all"
WANT_PEER = "want the address and port at which the other agent listens"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("tcp://192.168.1.20:7600", "192.168.1.20", 7600),
        ("tcp://0.0.0.0:0", "0.0.0.0", 0),
        ("tcp://127.0.0.1:65535", "127.0.0.1", 65535),
        ("tcp://[::1]:1", "::1", 1),
        ("tcp://[::]:7600", "::", 7600),
        ("tcp://[2001:DB8::a]:7600", "2001:DB8::a", 7600),
        ("tcp://[fe80::1%eth0]:7600", "fe80::1%eth0", 7600),
        ("tcp://[::ffff:10.0.0.1]:7600", "::ffff:10.0.0.1", 7600),
        ("tcp://pi2:7600", "pi2", 7600),
        ("tcp://pi-2.local.:7600", "pi-2.local.", 7600),
        ("tcp://_pi.a_b.3:7600", "_pi.a_b.3", 7600),
        ("tcp://" + "a" * 63 + ".b:7600", "a" * 63 + ".b", 7600),
    ],
)
def test_what_is_printed_is_what_was_parsed(text: str, host: str, port: int) -> None:
    endpoint = parse_endpoint("at", text)
    assert endpoint == Endpoint(host=host, port=port)
    assert str(endpoint) == text


def test_zeros_before_a_port_say_nothing() -> None:
    assert str(parse_endpoint("at", "tcp://pi2:00080")) == "tcp://pi2:80"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", '""'),
        (7600, "7600"),
        (None, "null"),
        (True, "true"),
        (b"tcp://pi2:7600", "b'tcp://pi2:7600'"),
        ("pi2:7600", '"pi2:7600"'),
        ("tcp://pi2", '"tcp://pi2"'),
        ("tcp://pi2:", '"tcp://pi2:"'),
        ("tcp://:7600", '"tcp://:7600"'),
        ("TCP://pi2:7600", '"TCP://pi2:7600"'),
        ("udp://pi2:7600", '"udp://pi2:7600"'),
        ("tcp://pi2:7600/", '"tcp://pi2:7600/"'),
        ("tcp://pi2:-1", '"tcp://pi2:-1"'),
        ("tcp://pi2:*", '"tcp://pi2:*"'),
        ("tcp://pi2:٧", '"tcp://pi2:٧"'),
        ("tcp://pi2:100000", '"tcp://pi2:100000"'),
        ("tcp://pi2:7600\n", '"tcp://pi2:7600\\n"'),
        (" tcp://pi2:7600", '" tcp://pi2:7600"'),
        ("tcp://p i:7600", '"tcp://p i:7600"'),
        ("tcp://::1:7600", '"tcp://::1:7600"'),
        ("tcp://[::1:7600", '"tcp://[::1:7600"'),
        ("tcp://[]:7600", '"tcp://[]:7600"'),
        ("x" * 100, '"' + "x" * 79 + "…"),
    ],
)
def test_what_is_written_otherwise_is_refused_with_an_example(text: object, shown: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_endpoint("--at", text)
    assert str(told.value) == f"--at: got {shown}, {WANT}"


@pytest.mark.parametrize("port", [65536, 99999])
def test_a_port_beyond_the_last_one_is_refused(port: int) -> None:
    with pytest.raises(UsageError) as told:
        parse_endpoint("key peering.listen", f"tcp://pi2:{port}")
    assert str(told.value) == (
        f'key peering.listen: got "tcp://pi2:{port}", want a port of at most 65535'
    )


@pytest.mark.parametrize(
    "host",
    [
        "192.168.1.300",
        "192.168.1",
        "1",
        "...",
        "-pi",
        "pi.-a",
        "pi..local",
        ".pi",
        "pi*",
        "pï",
        "pi@home",
        "a" * 64,
        "a." * 127 + "a",
        "[1:2]",
        "[::g]",
        "[fe80::1%]",
        "[::1%a%b]",
    ],
)
def test_what_is_neither_an_address_nor_a_name_is_refused(host: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_endpoint("at", f"tcp://{host}:7600")
    text = f'"tcp://{host}:7600"'
    shown = text if len(text) <= 80 else f"{text[:80]}…"
    assert str(told.value) == f"at: got {shown}, {WANT_HOST}"


def test_a_name_has_at_most_253_characters() -> None:
    longest = "a." * 126 + "a"
    assert parse_endpoint("at", f"tcp://{longest}:1").host == longest
    assert parse_endpoint("at", f"tcp://{longest[:-1]}:1").host == longest[:-1]


@pytest.mark.parametrize("tail", ["!", "-!", ".!", "..", "_\u00e9"])
def test_a_long_name_that_is_wrong_at_its_end_is_refused_at_once(tail: str) -> None:
    # Other devices send such texts; with more than one way to read them this takes years.
    for stem in ("a" * 200, "a." * 100, "a-" * 100):
        with pytest.raises(UsageError, match=re.escape(WANT_HOST)):
            parse_endpoint("at", f"tcp://{stem}{tail}:7600")


@pytest.mark.parametrize(
    ("host", "is_address", "is_ipv6", "is_any", "is_loopback"),
    [
        ("127.0.0.1", True, False, False, True),
        ("127.255.0.9", True, False, False, True),
        ("::1", True, True, False, True),
        ("0.0.0.0", True, False, True, False),
        ("::", True, True, True, False),
        ("192.168.1.20", True, False, False, False),
        ("fe80::1%eth0", True, True, False, False),
        ("localhost", False, False, False, False),
        ("pi2.local", False, False, False, False),
    ],
)
def test_a_host_is_told_apart(
    host: str, is_address: bool, is_ipv6: bool, is_any: bool, is_loopback: bool
) -> None:
    endpoint = Endpoint(host=host, port=1)
    assert endpoint.is_address is is_address
    assert endpoint.is_ipv6 is is_ipv6
    assert endpoint.is_any is is_any
    assert endpoint.is_loopback is is_loopback


def test_another_port_of_the_same_host() -> None:
    assert Endpoint(host="::1", port=1).at(7600) == Endpoint(host="::1", port=7600)


@pytest.mark.parametrize("text", ["tcp://0.0.0.0:0", "tcp://[::]:7600", "tcp://10.0.0.1:0"])
def test_an_address_of_this_device_is_listened_at(text: str) -> None:
    assert str(parse_listen("--listen", text)) == text


@pytest.mark.parametrize("text", ["tcp://localhost:7600", "tcp://pi2.local:0"])
def test_a_name_is_not_listened_at(text: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_listen("--listen", text)
    assert str(told.value) == f'--listen: got "{text}", {WANT_OWN}'


@pytest.mark.parametrize("text", ["tcp://pi2:7600", "tcp://10.0.0.1:1", "tcp://[::1]:65535"])
def test_another_agent_is_at_an_address_or_a_name(text: str) -> None:
    assert str(parse_peer_endpoint("--at", text)) == text


@pytest.mark.parametrize(
    "text", ["tcp://0.0.0.0:7600", "tcp://[::]:7600", "tcp://pi2:0", "tcp://10.0.0.1:00000"]
)
def test_another_agent_is_neither_everywhere_nor_at_port_zero(text: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_peer_endpoint("--at", text)
    assert str(told.value) == f'--at: got "{text}", {WANT_PEER}'


almost = st.from_regex(r"\Atcp://(\[[0-9a-f:.%]{0,9}\]|[a-z0-9._-]{0,9}):[0-9]{0,6}\Z")


@given(st.sampled_from([parse_endpoint, parse_listen, parse_peer_endpoint]), st.text() | almost)
@example(parse_endpoint, "tcp://\ud800:1")
def test_any_text_is_refused_or_prints_to_what_parses_to_the_same(
    parse: Callable[[str, object], Endpoint], text: str
) -> None:
    try:
        endpoint = parse("at", text)
    except UsageError:
        return
    assert parse("at", str(endpoint)) == endpoint
    assert 0 <= endpoint.port <= 65535
