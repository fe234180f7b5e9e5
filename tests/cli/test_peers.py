"""The commands about other devices, as far as they need no agent."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from edge_agent.agent.device_keys import own_keys
from edge_agent.cli.main import main
from edge_agent.cli.output import told_if_slow
from edge_agent.cli.peer_tables import age_text, peers_json, print_peers, unit_text
from edge_agent.cli.peers import parse_ttl
from edge_agent.devices import DeviceId, UnitId, UnitKind
from edge_agent.endpoints import Endpoint
from edge_agent.errors import (
    AgentUnavailable,
    AlreadyRunning,
    PeerLost,
    StorageError,
    UsageError,
)
from edge_agent.peers import (
    Gauged,
    Peer,
    PeerCondition,
    PeerLink,
    PeerState,
    PeerStatus,
    ProfileSummary,
    PublicKey,
    UnitSummary,
    base32,
    device_id,
    public_key,
)
from edge_agent.store.device_key import DeviceKeyStore
from edge_agent.store.lock import FolderLock
from edge_agent.store.peers import PeerStore
from edge_agent.transport.curve import make_keys
from edge_agent.wire.about_peers import Peers
from edge_agent.wire.tokens import Token, write_token

PI2 = Peer(key=public_key(b"2" * 32), name="pi2")
PI3 = Peer(key=public_key(b"3" * 32), name="a-pi3")
TOKEN = write_token(
    Token(
        key=make_keys().public,
        name="one",
        endpoints=(Endpoint(host="192.168.1.20", port=7600),),
        secret=make_keys().secret,
    )
)
UNTOLD = (
    'peer "{}" does not know the new key: there, `edge-agent peer remove` the old device and '
    "`edge-agent peer add` it with this key"
)


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("10m", 600.0),
        ("2h", 7200.0),
        ("7d", 604_800.0),
        ("1.5h", 5400.0),
        ("0.5", 0.5),
        ("010m", 600.0),
        ("999999999d", 999_999_999 * 86_400.0),
    ],
)
def test_a_time_is_read_in_its_unit(text: str, duration_s: float) -> None:
    assert parse_ttl(text) == duration_s


@pytest.mark.parametrize(
    "text",
    [
        *("", "m", "0", "0m", "0.0d", "-1m", "+1m", "1 m", " 1m", "1m\n", "1w", "1ms", "1M", "1mm"),
        *("1.", ".5h", "1e3", "1,5h", "nan", "inf", "1_000", "٣m", "1000000000", "1h30m", "1é"),
    ],
)
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_ttl(text)
    assert str(told.value) == f"--ttl {text}: want a time such as 90s, 10m, 2h or 1d"


@pytest.mark.parametrize(
    "arguments",
    [
        # Copied with the line break of a terminal in it, or to a wrong place.
        ("peer", "join", TOKEN[:90], TOKEN[90:]),
        (TOKEN,),
        ("peer", TOKEN),
        ("serve", "--max-requests", TOKEN),
        ("serve", "--join", "x", TOKEN),
        ("serve", "--log-level", TOKEN[60:]),
        ("serve", "--name", TOKEN),
        ("serve", "--join", TOKEN[:-1]),
        ("invite", "--ttl", TOKEN),
        ("peer", "join", TOKEN[:-1]),
        ("peer", "join", TOKEN * 100),
    ],
)
def test_what_is_wrong_is_told_without_the_token_that_was_given(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    told = capsys.readouterr()
    assert told.out == ""
    for at in range(len(TOKEN) - 24):
        assert TOKEN[at : at + 24] not in told.err


def test_what_is_read_and_is_no_token_is_not_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (("serve", "--join", "-"), ("peer", "join", "-")):
        for read in (b"", b"\xffsecret\xfe\n", TOKEN[:-1].encode() + b"\n"):
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(read)))
            assert main(command) == 2
            told = capsys.readouterr().err
            assert "token: " in told
            assert "Traceback" not in told
            assert "secret" not in told
            assert TOKEN[60:80] not in told


def test_who_waits_longer_than_a_moment_is_told_for_what(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with told_if_slow("never"):
        pass
    monkeypatch.setattr("edge_agent.cli.output.SLOW_S", 0.01)
    seen = threading.Event()
    with told_if_slow("waiting for the other device"):
        seen.wait(0.2)
    assert capsys.readouterr().err == "waiting for the other device\n"


@pytest.mark.parametrize(
    ("age_s", "text"),
    [
        (0.0, "0s"),
        (0.4, "0s"),
        (59.0, "59s"),
        (119.4, "119s"),
        (120.0, "2m"),
        (3600.0, "60m"),
        (7199.0, "120m"),
        (7200.0, "2h"),
        (172_799.0, "48h"),
        (172_800.0, "2d"),
        (1e7, "116d"),
    ],
)
def test_an_age_is_told_in_the_unit_that_has_two_of_it(age_s: float, text: str) -> None:
    assert age_text(age_s) == text


# ---- peers

GPU = UnitSummary(
    id=UnitId("gpu0"),
    kind=UnitKind.GPU,
    operations_per_s=(("float32", 1.28e12), ("int8", 5e12)),
    bandwidth_bytes_per_s=6e10,
    memory_bytes=2 << 30,
)
NPU = replace(GPU, id=UnitId("npu0"), kind=UnitKind.NPU, operations_per_s=(("int8", 6e9),))
SLOW = replace(GPU, operations_per_s=(("float32", 5e5),))
KNOWN = PeerStatus(
    peer=PI2,
    condition=PeerCondition.UP,
    for_s=60.0,
    round_trip_s=0.002,
    receive_bytes_per_s=12.5e6,
    receive_age_s=9.0,
    version="0.1.0",
    profile=ProfileSummary(
        name="pi2, A76",
        cores=4,
        memory_bytes=8 << 30,
        units=(GPU, NPU),
        source="measured on pi2",
        date="2026-11-30",
    ),
    state=PeerState(
        load_fraction=0.25,
        free_memory_bytes=3 << 30,
        speed_fraction=0.5,
        battery_fraction=0.9,
        age_s=1.0,
    ),
    links=(
        PeerLink(device=PI3.id, round_trip_s=0.01, send=Gauged(bytes_per_s=1.25e6, age_s=300.0)),
        PeerLink(
            device=DeviceId("s" * 20),
            round_trip_s=0.02,
            receive=Gauged(bytes_per_s=1.25e8, age_s=3.0),
        ),
    ),
)
UNKNOWN = PeerStatus(peer=PI3, condition=PeerCondition.GONE, for_s=5.0, why="it was stopped")
PEERS = Peers(
    name="here",
    key=PI2.key,
    listens_at=None,
    endpoints=(),
    peers=(KNOWN, UNKNOWN),
    profile=None,
)


@pytest.mark.parametrize(
    ("unit", "text"),
    [(GPU, "gpu0 1.28 TOP/s"), (NPU, "npu0 6 GOP/s (int8)"), (SLOW, "gpu0 0.0005 GOP/s")],
)
def test_a_unit_is_told_with_its_peak(unit: UnitSummary, text: str) -> None:
    assert unit_text(unit) == text


def test_people_read_how_peers_are_what_they_can_do_and_their_links(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_peers(PEERS)
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert rows[0] == [f"this device: here ({PI2.id}), does not listen"]
    assert rows[2][2:] == ["up", "60s", "2.0 ms", "100 Mbit/s (9s ago)", "-", "0.1.0", "-"]
    assert rows[3][2:] == ["gone", "5s", "-", "-", "-", "-", "-", "it was stopped"]
    assert rows[5] == [
        *("PEER", "UNITS", "CORES", "MEMORY", "FREE", "LOAD", "SPEED", "BATTERY", "TOLD")
    ]
    assert rows[6] == [
        *("pi2", "gpu0 1.28 TOP/s, npu0 6 GOP/s (int8)", "4", "8.0 GiB", "3.0 GiB"),
        *("25%", "50%", "90%", "1s ago"),
    ]
    assert rows[8] == ["FROM", "TO", "GOODPUT", "ROUND TRIP"]
    assert rows[9] == ["pi2", "a-pi3", "10 Mbit/s (5m ago), says pi2", "10.0 ms"]
    assert rows[10] == ["s" * 20, "pi2", "1 Gbit/s (3s ago), says pi2", "20.0 ms"]


def test_programs_read_all_that_is_known() -> None:
    found = msgspec.json.decode(msgspec.json.encode(peers_json(PEERS)))
    known, unknown = found["peers"]
    assert found["profile"] is None
    assert known["profile"]["units"][0] == {
        "id": "gpu0",
        "kind": "GPU",
        "operations_per_s": {"float32": 1.28e12, "int8": 5e12},
        "bandwidth_bytes_per_s": 6e10,
        "memory_bytes": 2 << 30,
    }
    assert (known["receive_bytes_per_s"], known["receive_age_s"]) == (12.5e6, 9.0)
    assert (known["send_bytes_per_s"], known["send_age_s"]) == (None, None)
    assert known["statistics"] == {
        "load_fraction": 0.25,
        "free_memory_bytes": 3 << 30,
        "speed_fraction": 0.5,
        "battery_fraction": 0.9,
        "age_s": 1.0,
    }
    assert known["links"][0] == {
        "device": PI3.id,
        "round_trip_s": 0.01,
        "receive_bytes_per_s": None,
        "receive_age_s": None,
        "send_bytes_per_s": 1.25e6,
        "send_age_s": 300.0,
    }
    assert (unknown["profile"], unknown["statistics"], unknown["links"]) == (None, None, [])


# ---- key


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder that is not there yet, and no other place that a command would look at."""
    for name in ("EDGE_AGENT_STATE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    # The path of a socket must be short.
    monkeypatch.setenv("EDGE_AGENT_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "state"


def kept(state: Path) -> PublicKey:
    return own_keys(DeviceKeyStore(state)).public


def rotate(state: Path, *options: str) -> int:
    return main(["key", "rotate", "--state", str(state), *options])


def test_the_key_is_made_once_and_shown_again(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["key", "show", "--state", str(state)]) == 0
    out, err = capsys.readouterr()
    assert err == f"made a key for this device: {state / 'key'}\n"
    assert out == f"device  {device_id(kept(state))}\nkey     {kept(state)}\n"
    assert main(["key", "show", "--state", str(state)]) == 0
    assert capsys.readouterr() == (out, "")


def test_the_key_is_shown_as_json(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "show", "--state", str(state), "--json"]) == 0
    out, _ = capsys.readouterr()
    assert json.loads(out) == {"device": device_id(kept(state)), "key": kept(state)}


def test_what_is_printed_does_not_tell_the_secret(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["show"], ["show", "--json"], ["rotate"], ["rotate", "--json"]):
        assert main(["key", *arguments, "--state", str(state)]) == 0
        secret = own_keys(DeviceKeyStore(state)).secret.raw
        printed = "".join(capsys.readouterr())
        assert base32(secret) not in printed
        assert secret.hex() not in printed


@pytest.mark.parametrize("action", ["show", "rotate"])
def test_a_key_that_others_can_read_is_not_shown_but_may_be_replaced(
    state: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    kept(state)
    (state / "key").chmod(0o644)
    code = main(["key", action, "--state", str(state)])
    out, err = capsys.readouterr()
    if action == "rotate":
        assert (code, err) == (0, "")
        assert kept(state) in out
        return
    assert (code, out) == (StorageError.exit_code, "")
    assert err.startswith(f"edge-agent key: {state / 'key'}: got mode 0644, want 0600: others may ")


def test_a_key_is_replaced_without_an_agent(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = kept(state)
    assert rotate(state) == 0
    new = kept(state)
    assert new != before
    assert capsys.readouterr() == (f"device  {device_id(new)}\nkey     {new}\n", "")
    assert rotate(state, "--json") == 0
    out, err = capsys.readouterr()
    newer = kept(state)
    assert newer != new
    assert json.loads(out) == {"device": device_id(newer), "key": newer, "untold": []}
    assert err == ""


def test_a_key_is_replaced_where_there_is_none_yet_or_it_is_damaged(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rotate(state) == 0
    assert kept(state) in capsys.readouterr().out
    (state / "key").write_text("damaged")
    assert rotate(state) == 0
    assert kept(state) in capsys.readouterr().out


def test_a_key_is_not_replaced_while_peers_cannot_be_told(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = kept(state)
    PeerStore(state).save((PI2, PI3))
    assert rotate(state) == PeerLost.exit_code == 18
    assert capsys.readouterr() == (
        "",
        "edge-agent key: the agent does not run, so that nobody can tell a-pi3, pi2 of a new key: "
        "start it first, or give --force and add the new key there by hand\n",
    )
    assert kept(state) == before


@pytest.mark.parametrize("is_json", [False, True])
def test_with_force_a_key_is_replaced_and_who_was_not_told_is_named(
    state: Path, capsys: pytest.CaptureFixture[str], is_json: bool
) -> None:
    before = kept(state)
    PeerStore(state).save((PI2, PI3))
    assert rotate(state, "--force", *(["--json"] if is_json else [])) == 0
    new = kept(state)
    assert new != before
    out, err = capsys.readouterr()
    assert err.splitlines() == [UNTOLD.format("a-pi3"), UNTOLD.format("pi2")]
    if is_json:
        told = {"device": device_id(new), "key": new, "untold": ["a-pi3", "pi2"]}
        assert json.loads(out) == told
    else:
        assert out == f"device  {device_id(new)}\nkey     {new}\n"
    assert PeerStore(state).load() == (PI2, PI3)


def test_peers_of_the_config_file_cannot_be_told_either(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[peers.fixed]\nkey = "{PI2.key}"\n')
    before = kept(state)
    assert rotate(state, "--config", str(config)) == PeerLost.exit_code
    assert "nobody can tell fixed of a new key" in capsys.readouterr().err
    assert kept(state) == before
    assert rotate(state, "--config", str(config), "--force") == 0
    assert capsys.readouterr().err == UNTOLD.format("fixed") + "\n"


def test_a_key_is_not_replaced_behind_the_back_of_an_agent_that_does_not_answer_yet(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = kept(state)
    with FolderLock(state):
        assert rotate(state, "--force") == AlreadyRunning.exit_code
    assert "is in use by the agent with process id" in capsys.readouterr().err
    assert kept(state) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["invite"],
        ["peers"],
        ["peer", "join", TOKEN],
        ["peer", "add", "pi2", PI2.key],
        ["peer", "remove", "pi2"],
        ["peer", "rename", "pi2", "pi3"],
    ],
)
@pytest.mark.usefixtures("state")
def test_the_other_commands_need_an_agent(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == AgentUnavailable.exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"edge-agent {arguments[0]}: ")


@pytest.mark.usefixtures("state")
def test_a_time_that_is_none_is_told_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["invite", "--ttl", "soon"])
    assert code == UsageError.exit_code == 2
    assert capsys.readouterr() == (
        "",
        "edge-agent invite: --ttl soon: want a time such as 90s, 10m, 2h or 1d\n",
    )
