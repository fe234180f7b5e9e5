"""Key pairs: what belongs together, and that libzmq knows them as we write them."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from typing import Self

import pytest
import zmq

from edge_agent.peers import SecretKey, device_id, public_key, raw_key
from edge_agent.transport.curve import (
    check_curve,
    encrypt_as_client,
    encrypt_as_server,
    keys_of,
    make_keys,
)
from edge_agent.transport.gate import Gate

Socket = zmq.Socket[bytes]


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    made: zmq.Context[Socket] = zmq.Context()
    yield made
    made.destroy(linger=0)


class Between:
    """Passes on the bytes of one connection in both directions, and keeps them."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.seen = b""
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        there = socket.create_connection(("127.0.0.1", self._target_port))
        with self._listener, there, self._listener.accept()[0] as here:
            other = {here: there, there: here}
            while True:
                for one in select.select([here, there], [], [])[0]:
                    if not (read := one.recv(4096)):
                        return
                    self.seen += read
                    other[one].sendall(read)


def test_this_libzmq_can_encrypt() -> None:
    check_curve()


@pytest.mark.parametrize(
    ("secret", "public"),
    [  # As OpenSSL says: `openssl pkey -pubout` of an X25519 key
        (bytes(range(32)), "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f"),
        (bytes(range(32, 64)), "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254"),
    ],
)
def test_the_public_key_is_the_one_that_belongs_to_the_secret(secret: bytes, public: str) -> None:
    keys = keys_of(SecretKey(secret))
    assert raw_key(keys.public).hex() == public
    assert keys.public == public_key(bytes.fromhex(public))
    assert keys.secret.raw == secret


def test_each_pair_is_new_and_belongs_together() -> None:
    made = [make_keys() for _ in range(20)]
    assert len({keys.public for keys in made}) == 20
    assert len({keys.device for keys in made}) == 20
    for keys in made:
        assert keys_of(keys.secret).public == keys.public
        assert keys.device == device_id(keys.public)


def test_a_server_enforces_its_domain_and_a_client_names_its_server(
    context: zmq.Context[Socket],
) -> None:
    here, there = make_keys(), make_keys()
    with context.socket(zmq.ROUTER) as server, context.socket(zmq.DEALER) as client:
        encrypt_as_server(server, here, b"door")
        encrypt_as_client(client, there, here.public)
        for side, is_server in ((server, 1), (client, 0)):
            assert side.getsockopt(zmq.MECHANISM) == zmq.CURVE
            assert side.getsockopt(zmq.CURVE_SERVER) == is_server
        assert server.getsockopt(zmq.ZAP_DOMAIN) == b"door"
        assert server.getsockopt(zmq.ZAP_ENFORCE_DOMAIN) == 1


def test_two_sockets_with_each_others_keys_talk_and_nothing_of_it_can_be_read(
    context: zmq.Context[Socket],
) -> None:
    here, there = make_keys(), make_keys()
    gate = Gate(context, lambda domain, key, _: (domain, key) == (b"door", there.public))
    server, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    encrypt_as_server(server, here, b"door")
    server.bind("tcp://127.0.0.1:*")
    encrypt_as_client(client, there, here.public)
    with Between(int(server.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2])) as between:
        client.connect(f"tcp://127.0.0.1:{between.port}")
        client.send(b"a secret word" * 10)
        assert gate.socket.poll(5000)
        gate.serve()
        assert server.poll(5000)
        route, message = server.recv_multipart()
        server.send_multipart([route, message])
        assert client.poll(5000)
        assert client.recv() == b"a secret word" * 10
        client.close(0)
        server.close(0)
    assert b"CURVE" in between.seen
    assert b"secret word" not in between.seen
    assert here.secret.raw not in between.seen
    assert there.secret.raw not in between.seen
    gate.close()
