"""Key pairs for CURVE (ZeroMQ RFC 26), and how keys look to libzmq: in Z85 (RFC 32)."""

from __future__ import annotations

import zmq
from zmq.utils import z85

from edge_agent.errors import RuntimeUnavailable
from edge_agent.peers import KeyPair, PublicKey, SecretKey, public_key, raw_key


def check_curve() -> None:
    """Raises: RuntimeUnavailable: this libzmq cannot encrypt."""
    if not zmq.has("curve"):
        raise RuntimeUnavailable(
            f"the libzmq {zmq.zmq_version()} that pyzmq {zmq.__version__} uses has no CURVE, "
            "without which devices cannot be joined: install pyzmq from its wheels"
        )


def make_keys() -> KeyPair:
    """A new key pair. Raises: RuntimeUnavailable: as `check_curve`."""
    check_curve()
    _, secret = zmq.curve_keypair()
    return keys_of(SecretKey(z85.decode(secret)))


def keys_of(secret: SecretKey) -> KeyPair:
    """The pair that a secret key belongs to. Raises: RuntimeUnavailable: as `check_curve`."""
    check_curve()
    public = z85.decode(zmq.curve_public(z85.encode(secret.raw)))
    return KeyPair(public=public_key(public), secret=secret)


def encrypt_as_server(socket: zmq.Socket[bytes], keys: KeyPair, domain: bytes) -> None:
    """Before it is bound: take only connections that are encrypted to these keys and that the
    gate admits to `domain`; none at all where there is no gate."""
    _own_keys(socket, keys)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.ZAP_DOMAIN, domain)
    # Else libzmq takes every key where nobody answers for the domain.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def encrypt_as_client(socket: zmq.Socket[bytes], keys: KeyPair, server: PublicKey) -> None:
    """Before it is connected: connect only to who has the secret half of `server`."""
    _own_keys(socket, keys)
    socket.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(raw_key(server)))


def _own_keys(socket: zmq.Socket[bytes], keys: KeyPair) -> None:
    socket.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(raw_key(keys.public)))
    socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(keys.secret.raw))
