"""Messages between agents: every one survives the way, and nothing else is understood."""

from __future__ import annotations

import math
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.errors import Busy, EdgeAgentError, OtherVersion, ProtocolError
from edge_agent.peers import MAX_BEAT_S, MAX_ENDPOINTS, MAX_PEERS
from edge_agent.plans import Target
from edge_agent.wire.about_peers import (
    AddPeer,
    AskPeers,
    Invite,
    JoinDevice,
    RemovePeer,
    RenamePeer,
    RotateKey,
)
from edge_agent.wire.device_profiles import MAX_PROFILE_BYTES
from edge_agent.wire.messages import (
    ClientMessage,
    Codec,
    Load,
    Message,
    Unload,
)
from edge_agent.wire.parts import MAX_TOLD_CHARACTERS
from edge_agent.wire.peering import (
    LAST_PROTOCOL,
    MAX_MESSAGE_BYTES,
    MAX_SOUND_BYTES,
    PROTOCOL,
    Beat,
    DoorAnswer,
    DoorMessage,
    Goodbye,
    Goodput,
    Hello,
    Join,
    Joined,
    Leaving,
    NewKey,
    NotedKey,
    PeerCodec,
    PeerMessage,
    Refused,
    Sound,
    Sounded,
    Welcome,
    decode_from,
    refusal,
)
from edge_agent.wire.telling import AskProfile, Profile, Statistics, ToldGoodput, ToldLink
from tests.wire.made_deploying import FROM_HOST, FROM_OWNER

KEY = "b" * 51 + "a"
ENDS = ("tcp://192.168.1.20:7600", "tcp://[fd00::1]:7600")
CODEC = PeerCodec()
PLACES: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "at_door": CODEC.at_door,
    "from_door": CODEC.from_door,
    "from_peer": CODEC.from_peer,
}
JOIN = Join(key=KEY, name="pi2", endpoints=ENDS, version="0.1.0")
HELLO = Hello(name="pi2", endpoints=ENDS, version="0.1.0", beat_s=0.25, agent="a1")
WELCOME = Welcome(
    port=65535, content_port=1, endpoints=ENDS, version="0.1.0", beat_s=MAX_BEAT_S, agent="a2"
)
BEAT = Beat(number=2**53, echo=0, held_s=1e6)
LINK = ToldLink(
    device="a" * 20,
    round_trip_s=3600.0,
    receive=ToldGoodput(1e15, 0.0),
    send=ToldGoodput(1e-3, 1e9),
)
STATISTICS = Statistics(
    load_fraction=1.0,
    free_memory_bytes=2**48,
    speed_fraction=1e-6,
    battery_fraction=0.0,
    profile=b"h" * 32,
    links=(LINK, ToldLink(device="b" * 20, round_trip_s=0.0)),
)
IDLE = Statistics(
    load_fraction=0.0,
    free_memory_bytes=0,
    speed_fraction=1.0,
    battery_fraction=None,
    profile=None,
    links=(),
)
EXAMPLES: list[tuple[str, Message]] = [
    ("at_door", JOIN),
    ("at_door", Join(key=KEY, name="", endpoints=(), version="")),
    ("at_door", HELLO),
    ("from_door", Joined(name="pi1", endpoints=("x" * 256,) * MAX_ENDPOINTS)),
    ("from_door", WELCOME),
    ("from_door", Refused("busy", "later")),
    ("at_door", Sound(0)),
    ("at_door", Sound(MAX_SOUND_BYTES)),
    ("from_door", Sounded(b"")),
    ("from_peer", BEAT),
    ("from_peer", Beat(number=0, echo=None, held_s=0.0)),
    ("from_peer", Goodput(1e-3)),
    ("from_peer", NewKey(KEY)),
    ("from_peer", NotedKey(KEY)),
    *(("from_peer", Goodbye(why)) for why in Leaving),
    ("from_peer", STATISTICS),
    ("from_peer", IDLE),
    ("from_peer", AskProfile()),
    ("from_peer", Profile(b"")),
    ("from_peer", Profile(b"\x00" * MAX_PROFILE_BYTES)),
    *(("from_peer", message) for message in (*FROM_OWNER, *FROM_HOST)),
]


def plain(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.msgpack.decode(CODEC.encode(message)[1:])
    return found


def wire(value: Any) -> bytes:
    return bytes([PROTOCOL]) + msgspec.msgpack.encode(value)


def test_every_kind_of_message_is_among_the_examples() -> None:
    kinds = {*get_args(DoorMessage), *get_args(DoorAnswer), *get_args(PeerMessage)}
    assert {type(message) for _, message in EXAMPLES} == kinds


@pytest.mark.parametrize(("place", "message"), EXAMPLES)
def test_a_message_comes_back_as_it_was(place: str, message: Message) -> None:
    raw = CODEC.encode(message)
    assert raw[0] == 1
    assert decode_from(PLACES[place], raw) == message


@pytest.mark.parametrize(("place", "message"), EXAMPLES)
def test_a_message_is_not_understood_in_another_place(place: str, message: Message) -> None:
    for other in PLACES.keys() - {place}:
        with pytest.raises(ProtocolError, match="message not understood"):
            decode_from(PLACES[other], CODEC.encode(message))


@pytest.mark.parametrize(("place", "message"), EXAMPLES)
def test_a_message_cut_short_anywhere_is_a_protocol_error(place: str, message: Message) -> None:
    raw = CODEC.encode(message)
    for length in range(len(raw)):
        with pytest.raises(ProtocolError, match="message not understood") as told:
            decode_from(PLACES[place], raw[:length])
        assert not isinstance(told.value, OtherVersion)
    with pytest.raises(ProtocolError, match="message not understood"):
        decode_from(PLACES[place], raw + b"\x00")


def test_an_empty_message_says_so() -> None:
    with pytest.raises(ProtocolError) as told:
        decode_from(CODEC.from_peer, b"")
    assert str(told.value) == "message not understood: it is empty"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rest", [b"", CODEC.encode(BEAT)[1:], b"\xc1" * 100])
def test_another_version_is_told_with_the_side_to_update(place: str, rest: bytes) -> None:
    for version in range(PROTOCOL + 1, LAST_PROTOCOL + 1):
        with pytest.raises(OtherVersion) as told:
            decode_from(PLACES[place], bytes([version]) + rest)
        assert str(told.value) == (
            f"got version {version} of the protocol between devices, want 1: update edge-agent on "
            "this device"
        )


@pytest.mark.parametrize("place", PLACES)
def test_what_begins_with_no_version_asks_for_no_update(place: str) -> None:
    for first in (0, *range(LAST_PROTOCOL + 1, 256)):
        with pytest.raises(ProtocolError) as told:
            decode_from(PLACES[place], bytes([first]) + CODEC.encode(BEAT)[1:])
        assert not isinstance(told.value, OtherVersion)
        assert str(told.value) == (
            f"message not understood: it begins with {first}, want a version"
        )


def test_a_message_may_have_so_many_bytes_and_no_more() -> None:
    for length in (MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1):
        with pytest.raises(ProtocolError) as told:
            decode_from(CODEC.from_peer, bytes([PROTOCOL]) + b"\xc1" * (length - 1))
        is_too_large = str(told.value) == "got a message of 262145 bytes, want at most 262144"
        assert is_too_large == (length > MAX_MESSAGE_BYTES)


@given(st.sampled_from(sorted(PLACES)), st.binary(max_size=300), st.booleans())
@example("from_peer", b"\x91" * 100_000, True)
@example("at_door", b"\x81\xa1x" * 100_000, True)
def test_random_bytes_are_never_anything_but_a_protocol_error(
    place: str, raw: bytes, is_ours: bool
) -> None:
    with pytest.raises(ProtocolError):
        decode_from(PLACES[place], bytes([PROTOCOL]) + raw if is_ours else raw)


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_damaged_message_is_understood_or_a_protocol_error(
    case: tuple[str, Message], data: st.DataObject
) -> None:
    place, message = case
    raw = bytearray(CODEC.encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        value = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):
            raw[at] = value
        else:
            raw.insert(at, value)
    try:
        decode_from(PLACES[place], bytes(raw))
    except ProtocolError:
        return


@pytest.mark.parametrize(("place", "message"), EXAMPLES)
def test_an_unknown_or_missing_field_is_refused(place: str, message: Message) -> None:
    fields = plain(message)
    with pytest.raises(ProtocolError, match="contains unknown field `more`"):
        decode_from(PLACES[place], wire(fields | {"more": 1}))
    for name in fields.keys() - {"kind"}:
        with pytest.raises(ProtocolError, match=f"missing required field `{name}`"):
            decode_from(PLACES[place], wire({k: v for k, v in fields.items() if k != name}))


BOUNDS: list[tuple[str, Message, str, Any]] = [
    *(
        (place, message, field, bad)
        for place, message, field in (
            ("at_door", HELLO, "beat_s"),
            ("from_door", WELCOME, "beat_s"),
            ("from_peer", BEAT, "held_s"),
        )
        for bad in (math.nan, math.inf, -math.inf, -1e-300, 1e6 + 1e-9, 10**7, None, "1", True)
    ),
    *(
        (place, message, "endpoints", bad)
        for place, message in (("at_door", JOIN), ("at_door", HELLO), ("from_door", WELCOME))
        for bad in (ENDS[:1] * (MAX_ENDPOINTS + 1), ["x" * 257], [b"x"], "x", None, {"a": 1})
    ),
    *(("at_door", JOIN, field, "x" * 257) for field in ("name", "version")),
    *(("at_door", HELLO, field, "x" * 257) for field in ("name", "version")),
    ("from_door", WELCOME, "version", "x" * 257),
    ("from_door", Refused("busy", ""), "code", "x" * 257),
    ("from_door", Refused("busy", ""), "message", "x" * (MAX_TOLD_CHARACTERS + 1)),
    *(
        ("from_door", WELCOME, field, bad)
        for field in ("port", "content_port")
        for bad in (0, -1, 65536, 1.5, True, None)
    ),
    *(("from_door", WELCOME, "beat_s", bad) for bad in (0.0, 0.02, MAX_BEAT_S + 1e-9)),
    *(
        ("from_peer", Goodput(1.0), "bytes_per_s", bad)
        for bad in (0.0, -1.0, math.nan, math.inf, 2e15, None, "1", True)
    ),
    *(
        ("from_peer", BEAT, field, bad)
        for field in ("number", "echo")
        for bad in (-1, 2**53 + 1, 2**64 - 1, 0.5, "1", True)
    ),
    ("from_peer", BEAT, "number", None),
    *(
        (place, message, "key", bad)
        for place, message in (
            ("at_door", JOIN),
            ("from_peer", NewKey(KEY)),
            ("from_peer", NotedKey(KEY)),
        )
        for bad in (KEY[1:], KEY + "a", b"a" * 52, None)
    ),
    *(
        ("from_peer", IDLE, field, bad)
        for field in ("load_fraction", "speed_fraction", "battery_fraction")
        for bad in (-1e-9, 1 + 1e-9, math.nan, math.inf, -math.inf, 1e30, "1", True)
    ),
    ("from_peer", IDLE, "speed_fraction", 0.0),
    *(
        ("from_peer", IDLE, "free_memory_bytes", bad)
        for bad in (-1, 2**48 + 1, 1e30, math.nan, None, True)
    ),
    *(("from_peer", IDLE, "profile", bad) for bad in (b"", b"h" * 31, b"h" * 33, "h" * 32, 1)),
    *(
        ("from_peer", IDLE, "links", bad)
        for bad in (
            [{"device": "a" * 20, "round_trip_s": 0.0}] * (MAX_PEERS + 1),
            [{"device": "a" * 19, "round_trip_s": 0.0}],
            [{"device": "a" * 20 + "\n", "round_trip_s": 0.0}],
            [{"device": "a" * 20}],
            *([{"device": "a" * 20, "round_trip_s": s}] for s in (-1.0, math.nan, math.inf, 1e30)),
            *(
                [{"device": "a" * 20, "round_trip_s": 0.0, "send": goodput}]
                for goodput in ((0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (1e16, 0.0), (1.0, -1.0))
            ),
            [{"device": "a" * 20, "round_trip_s": 0.0, "receive": (1.0, math.nan)}],
            [{"device": "a" * 20, "round_trip_s": 0.0, "more": 1}],
        )
    ),
    ("from_peer", Profile(b""), "packed", b"x" * (MAX_PROFILE_BYTES + 1)),
    ("from_peer", Profile(b""), "packed", "x"),
    *(
        ("at_door", Sound(0), "length_bytes", bad)
        for bad in (-1, MAX_SOUND_BYTES + 1, 2**63, 0.5, None, "1", True)
    ),
    ("from_door", Sounded(b""), "content", b"x" * (MAX_SOUND_BYTES + 1)),
    *(("from_peer", Goodbye(Leaving.STOPPED), "why", bad) for bad in ("bored", "", None, 0)),
]


@pytest.mark.parametrize(("place", "message", "field", "bad"), BOUNDS)
def test_a_value_out_of_bounds_is_refused_naming_the_field(
    place: str, message: Message, field: str, bad: Any
) -> None:
    with pytest.raises(ProtocolError) as told:
        decode_from(PLACES[place], wire(plain(message) | {field: bad}))
    assert f"$.{field}" in str(told.value)


@pytest.mark.parametrize("kind", get_args(ClientMessage))
@pytest.mark.parametrize("place", PLACES)
def test_no_kind_of_message_of_the_local_socket_is_known(place: str, kind: type[Message]) -> None:
    tag = kind.__struct_config__.tag
    with pytest.raises(ProtocolError) as told:
        decode_from(PLACES[place], wire({"kind": tag}))
    assert str(told.value) == f"message not understood: Invalid value '{tag}' - at `$.kind`"


@pytest.mark.parametrize(
    "message",
    [
        Load("/m.onnx", None, Target.LATENCY, None, ()),
        Unload("m"),
        Invite(600.0),
        JoinDevice("edge1"),
        AskPeers(),
        AddPeer(key=KEY, name="pi2"),
        RemovePeer("pi2"),
        RenamePeer("pi2", "pi3"),
        RotateKey(True),
    ],
)
def test_what_a_client_may_ask_a_peer_may_not(message: Message) -> None:
    local = Codec().encode(message)
    for decoder in PLACES.values():
        for raw in (local, CODEC.encode(message)):
            with pytest.raises(ProtocolError):
                decode_from(decoder, raw)


def test_two_links_to_one_device_are_refused() -> None:
    links = [{"device": "a" * 20, "round_trip_s": 0.0}] * 2
    with pytest.raises(ProtocolError, match="got two links to one device"):
        decode_from(CODEC.from_peer, wire(plain(IDLE) | {"links": links}))


def test_a_refusal_names_the_error() -> None:
    assert refusal(Busy("later")) == Refused("busy", "later")


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 100_000, "caf\udce9", ""])
def test_the_refusal_of_any_error_fits_into_a_message(text: str) -> None:
    told = refusal(EdgeAgentError(text))
    assert decode_from(CODEC.from_door, CODEC.encode(told)) == told
    assert told.message == text.replace("\udce9", "?")[:MAX_TOLD_CHARACTERS]
