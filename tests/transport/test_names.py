"""Names of hosts become addresses; what is not known has none."""

from __future__ import annotations

import pytest

from edge_agent.endpoints import Endpoint
from edge_agent.transport.names import addresses_of


def at(*hosts: str) -> list[Endpoint]:
    return [Endpoint(host=host, port=7600) for host in hosts]


def test_addresses_stay_as_they_are_in_their_order_and_once() -> None:
    known = at("192.168.1.20", "fd00::1", "127.0.0.1")
    assert addresses_of([*known, *known]) == tuple(known)
    assert addresses_of([]) == ()
    other = known[0].at(1)
    assert addresses_of([known[0], other]) == (known[0], other)


def test_a_name_becomes_its_addresses_at_its_place_with_its_port() -> None:
    first, *middle, last = addresses_of(at("10.0.0.1", "localhost", "10.0.0.2"))
    assert [first, last] == at("10.0.0.1", "10.0.0.2")
    assert middle
    for found in middle:
        assert found.is_loopback
        assert found.port == 7600


def test_an_address_that_stands_there_twice_is_tried_once() -> None:
    # What the resolver says of the name is there already, or comes behind it.
    found = addresses_of(at("127.0.0.1", "::1", "localhost"))
    assert found == tuple(at("127.0.0.1", "::1"))


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "a" * 64 + ".invalid", "a..b", ".", "\ud800", "xn--a.invalid"]
)
def test_a_name_that_is_not_known_has_no_addresses(host: str) -> None:
    assert addresses_of(at(host, "10.0.0.1")) == tuple(at("10.0.0.1"))
