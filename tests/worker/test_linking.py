"""What an agent may tell a worker of its connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.errors import ProtocolError
from edge_agent.transport.curve import make_keys
from edge_agent.wire.hosting import (
    Dial,
    DividedPart,
    Linked,
    Listen,
    Listening,
    Neighbour,
    Unlinked,
)
from edge_agent.wire.messages import Message
from edge_agent.worker.linking import Links
from tests.system.running import wait_until
from tests.worker.made_stages import EPOCH, crossings

NEAR = DeviceId("near")
AT = Endpoint(host="127.0.0.1", port=0)


@contextmanager
def links(told: list[Message], *, is_encrypted: bool) -> Iterator[Links]:
    """`told` is what the agent hears."""
    part = DividedPart(
        crossings=crossings("o>0 x", "0>o y").crossings,
        stages=(),
        neighbours=(Neighbour(device=NEAR, stages=(0,), window_bytes=1024),),
        is_encrypted=is_encrypted,
    )
    made = Links(EPOCH, part, {}, told.append)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_a_connection_is_encrypted_exactly_if_the_epoch_is(is_encrypted: bool) -> None:
    """However the agent puts it: nothing of an encrypted epoch goes out in the clear."""
    wrong = None if is_encrypted else make_keys().public
    with links([], is_encrypted=is_encrypted) as made:
        told = "got no key, want one" if is_encrypted else "got a key, want none"
        with pytest.raises(ProtocolError, match=f"connect to near: {told}"):
            made.listen(Listen(epoch=EPOCH, device=NEAR, key=wrong, at=AT))
        with pytest.raises(ProtocolError, match=f"connect to near: {told}"):
            made.dial(Dial(epoch=EPOCH, device=NEAR, key=wrong, to=(AT.at(1),)))
        # It was not told of a neighbour by that.
        right = make_keys().public if is_encrypted else None
        made.listen(Listen(epoch=EPOCH, device=NEAR, key=right, at=AT))


def test_only_neighbours_are_connected_and_once() -> None:
    with links([], is_encrypted=True) as made:
        key = make_keys().public
        with pytest.raises(ProtocolError, match="it is no neighbour, or was told"):
            made.listen(Listen(epoch=EPOCH, device=DeviceId("far"), key=key, at=AT))
        made.listen(Listen(epoch=EPOCH, device=NEAR, key=key, at=AT))
        with pytest.raises(ProtocolError, match="it is no neighbour, or was told"):
            made.dial(Dial(epoch=EPOCH, device=NEAR, key=key, to=(AT.at(1),)))


@pytest.mark.parametrize("is_listening", [True, False])
@pytest.mark.parametrize("said", [b"\xff" * 100, b""])
def test_whether_a_neighbour_broke_the_rules_is_told(is_listening: bool, said: bytes) -> None:
    """It says something that nobody may say, or nothing and is gone."""
    told: list[Message] = []
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    bad = context.socket(zmq.DEALER)
    bad.linger = 1000
    try:
        with links(told, is_encrypted=False) as made:
            if is_listening:
                made.listen(Listen(epoch=EPOCH, device=NEAR, key=None, at=AT))
                (listening,) = told
                assert isinstance(listening, Listening)
                bad.connect(str(AT.at(listening.port)))
            else:
                port = bad.bind_to_random_port("tcp://127.0.0.1")
                to = (AT.at(port), AT.at(1))  # there is no second try with one that lies
                made.dial(Dial(epoch=EPOCH, device=NEAR, key=None, to=to))
            wait_until(lambda: Linked(epoch=EPOCH) in told, "they are connected")
            if said:
                bad.send(said)
            else:
                bad.close()
            wait_until(lambda: isinstance(told[-1], Unlinked), "it is over")
            (over,) = [message for message in told if isinstance(message, Unlinked)]
            assert over.device == NEAR
            assert over.is_offence == bool(said)
            assert ("got version 255" in over.why) == bool(said)
    finally:
        context.destroy(linger=0)
