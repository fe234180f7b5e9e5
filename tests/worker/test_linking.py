"""What an agent may tell a worker of its connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.errors import ProtocolError
from edge_agent.transport.curve import make_keys
from edge_agent.wire.hosting import Dial, DividedPart, Listen, Neighbour
from edge_agent.worker.linking import Links
from tests.worker.made_stages import EPOCH, crossings

NEAR = DeviceId("near")
AT = Endpoint(host="127.0.0.1", port=0)


@contextmanager
def links(*, is_encrypted: bool) -> Iterator[Links]:
    part = DividedPart(
        crossings=crossings("o>0 x", "0>o y").crossings,
        stages=(),
        neighbours=(Neighbour(device=NEAR, stages=(0,), window_bytes=1024),),
        is_encrypted=is_encrypted,
    )
    made = Links(EPOCH, part, {}, lambda _: None)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_a_connection_is_encrypted_exactly_if_the_epoch_is(is_encrypted: bool) -> None:
    """However the agent puts it: nothing of an encrypted epoch goes out in the clear."""
    wrong = None if is_encrypted else make_keys().public
    with links(is_encrypted=is_encrypted) as made:
        told = "got no key, want one" if is_encrypted else "got a key, want none"
        with pytest.raises(ProtocolError, match=f"connect to near: {told}"):
            made.listen(Listen(epoch=EPOCH, device=NEAR, key=wrong, at=AT))
        with pytest.raises(ProtocolError, match=f"connect to near: {told}"):
            made.dial(Dial(epoch=EPOCH, device=NEAR, key=wrong, to=(AT.at(1),)))
        # It was not told of a neighbour by that.
        right = make_keys().public if is_encrypted else None
        made.listen(Listen(epoch=EPOCH, device=NEAR, key=right, at=AT))


def test_only_neighbours_are_connected_and_once() -> None:
    with links(is_encrypted=True) as made:
        key = make_keys().public
        with pytest.raises(ProtocolError, match="it is no neighbour, or was told"):
            made.listen(Listen(epoch=EPOCH, device=DeviceId("far"), key=key, at=AT))
        made.listen(Listen(epoch=EPOCH, device=NEAR, key=key, at=AT))
        with pytest.raises(ProtocolError, match="it is no neighbour, or was told"):
            made.dial(Dial(epoch=EPOCH, device=NEAR, key=key, to=(AT.at(1),)))
