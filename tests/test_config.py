import os
import pwd
from pathlib import Path

import pytest

from edge_agent.config import (
    Limits,
    LogLevel,
    Peering,
    Settings,
    UnitSettings,
    decode_settings,
    decode_units,
    encode_settings,
    encode_units,
    find_socket,
    load_settings,
    make_socket_folder,
)
from edge_agent.devices import UnitId, UnitKind
from edge_agent.endpoints import Endpoint
from edge_agent.errors import UsageError
from edge_agent.peers import MAX_PEERS, Origin, Peer, public_key

KEY = public_key(bytes(range(32)))
OTHER_KEY = public_key(b"o" * 32)


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_anything_set_all_lies_below_the_home_folder() -> None:
    assert load_settings({"HOME": "/home/u"}) == Settings(
        socket=Path("/home/u/.local/state/edge-agent/run/agent.sock"),
        state=Path("/home/u/.local/state/edge-agent"),
        cache=Path("/home/u/.cache/edge-agent"),
        limits=Limits(
            max_requests_in_flight=256,
            max_bytes_in_flight=1 << 30,
            max_request_bytes=256 << 20,
            max_model_bytes=2**31 - 1,
            max_external_bytes=64 << 30,
        ),
        log_level=LogLevel.INFO,
    )


def test_without_a_home_variable_the_user_database_is_asked() -> None:
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert load_settings({}).state == home / ".local/state/edge-agent"


def test_the_xdg_folders_are_used(tmp_path: Path) -> None:
    environ = {
        "HOME": "/home/u",
        "XDG_STATE_HOME": "/s",
        "XDG_CACHE_HOME": "/c",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    written(tmp_path / "config/edge-agent/config.toml", 'log_level = "debug"')
    got = load_settings(environ)
    assert got.socket == tmp_path / "edge-agent/agent.sock"
    assert got.state == Path("/s/edge-agent")
    assert got.cache == Path("/c/edge-agent")
    assert got.log_level is LogLevel.DEBUG


def test_relative_xdg_folders_and_runtime_folders_that_are_gone_are_ignored() -> None:
    environ = {"HOME": "/home/u", "XDG_STATE_HOME": "s", "XDG_RUNTIME_DIR": "/gone"}
    assert load_settings(environ) == load_settings({"HOME": "/home/u"})


@pytest.mark.skipif(os.getuid() != 0, reason="giving a folder away needs root")
def test_a_runtime_folder_of_another_user_is_ignored(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    got = load_settings({"HOME": "/home/u", "XDG_RUNTIME_DIR": str(tmp_path)})
    assert got.socket == Path("/home/u/.local/state/edge-agent/run/agent.sock")


def test_arguments_beat_the_environment_and_that_beats_the_file(tmp_path: Path) -> None:
    file = written(tmp_path / "c.toml", 'socket = "/file/s"\nstate = "/file/st"\ncache = "~/k"')
    environ = {"HOME": "/home/u"}
    got = load_settings(environ, config_file=file)
    assert (got.socket, got.state, got.cache) == (
        Path("/file/s"),
        Path("/file/st"),
        Path("/home/u/k"),
    )
    environ |= {"EDGE_AGENT_SOCKET": "/env/s", "EDGE_AGENT_STATE": "/env/st"}
    got = load_settings(environ, config_file=file)
    assert (got.socket, got.state) == (Path("/env/s"), Path("/env/st"))
    got = load_settings(environ, config_file=file, socket="/arg/s", state=Path("/arg/st"))
    assert (got.socket, got.state) == (Path("/arg/s"), Path("/arg/st"))


def test_a_chosen_state_folder_holds_the_cache_and_the_socket_too() -> None:
    got = load_settings({"HOME": "/home/u"}, state="/st")
    assert (got.cache, got.socket) == (Path("/st/cache"), Path("/st/run/agent.sock"))


def test_two_state_folders_of_the_environment_have_two_sockets(tmp_path: Path) -> None:
    """Also in a session that has a folder for sockets, which both would share."""
    environ = {"HOME": "/home/u", "XDG_RUNTIME_DIR": str(tmp_path), "EDGE_AGENT_STATE": "/one"}
    assert load_settings(environ).socket == Path("/one/run/agent.sock")
    assert find_socket(environ) == Path("/one/run/agent.sock")
    # What `serve` alone was told is nothing that other commands know.
    shared = tmp_path / "edge-agent/agent.sock"
    assert load_settings(environ, state="/two").socket == shared
    del environ["EDGE_AGENT_STATE"]
    assert load_settings(environ, state="/one").socket == shared


def test_relative_paths_from_arguments_mean_the_current_folder() -> None:
    assert load_settings({"HOME": "/home/u"}, socket="a/../b.sock").socket == Path.cwd() / "b.sock"


def test_limits_from_the_file_are_used(tmp_path: Path) -> None:
    file = written(tmp_path / "c.toml", "[limits]\nmax_requests_in_flight = 7\n")
    assert load_settings({"HOME": "/h"}, config_file=file).limits == Limits(
        max_requests_in_flight=7
    )


def test_specialising_is_switched_off_with_a_zero(tmp_path: Path) -> None:
    file = written(tmp_path / "c.toml", "[specialising]\nmost_shapes = 0\n")
    assert load_settings({"HOME": "/h"}, config_file=file).specialising.most_shapes == 0


def test_units_from_the_file_are_used_and_reach_a_child_process(tmp_path: Path) -> None:
    file = written(
        tmp_path / "c.toml",
        """
        [planning]
        probe_s = 5

        [units.cpu]
        off = false
        threads = 2

        [units.webgpu]
        off = true

        [units.mine]
        provider = "MyExecutionProvider"
        library = "~/libmine.so"
        kind = "NPU"
        memory_bytes = 1_000
        options = { z = "text", flag = true, level = 3, share = 0.5 }
        """,
    )
    got = load_settings({"HOME": "/home/u"}, config_file=file)
    assert (got.config_file, got.planning.probe_s) == (file, 5)
    assert got.units == (
        UnitSettings(id=UnitId("cpu"), file=file, threads=2),
        UnitSettings(id=UnitId("webgpu"), file=file, off=True),
        UnitSettings(
            id=UnitId("mine"),
            file=file,
            provider="MyExecutionProvider",
            library=Path("/home/u/libmine.so"),
            kind=UnitKind.NPU,
            memory_bytes=1000,
            options=(("flag", "1"), ("level", "3"), ("share", "0.5"), ("z", "text")),
        ),
    )
    assert decode_settings(encode_settings(got)) == got
    assert decode_units(encode_units(got.units)) == got.units
    assert got.units[1].key("off") == f"[units.webgpu] off in {file}"


def test_without_a_word_about_others_nothing_listens_and_nobody_is_known() -> None:
    got = load_settings({"HOME": "/h"})
    assert got.peering == Peering(listen=None, name="", beat_s=0.25, silent_s=1.0, gone_s=10.0)
    assert got.peers == ()


def test_what_the_file_says_of_other_devices_is_used(tmp_path: Path) -> None:
    file = written(
        tmp_path / "c.toml",
        f"""
        [peering]
        listen = "tcp://[::]:0"
        name = "pi1"
        beat_s = 0.5
        silent_s = 1
        gone_s = 1.0

        [peers.pi2]
        key = "{KEY.upper()}"
        endpoints = ["tcp://pi2.local:7600", "tcp://[fd00::2]:1"]

        [peers.9]
        key = "{OTHER_KEY}"
        """,
    )
    got = load_settings({"HOME": "/h"}, config_file=file)
    assert got.peering == Peering(
        listen=Endpoint(host="::", port=0), name="pi1", beat_s=0.5, silent_s=1.0, gone_s=1.0
    )
    places = (Endpoint(host="pi2.local", port=7600), Endpoint(host="fd00::2", port=1))
    assert got.peers == (
        Peer(
            key=KEY,
            name="pi2",
            endpoints=places,
            written=places,
            origin=Origin.CONFIGURED,
        ),
        Peer(key=OTHER_KEY, name="9", origin=Origin.CONFIGURED),
    )
    assert decode_settings(encode_settings(got)) == got


def test_more_peers_than_there_may_be_are_refused(tmp_path: Path) -> None:
    keys = [public_key(number.to_bytes(32, "big")) for number in range(1, MAX_PEERS + 2)]
    tables = [f"[peers.p{number}]\nkey = '{key}'\n" for number, key in enumerate(keys)]
    file = written(tmp_path / "c.toml", "".join(tables[:-1]))
    assert len(load_settings({"HOME": "/h"}, config_file=file).peers) == 64
    file = written(tmp_path / "c.toml", "".join(tables))
    with pytest.raises(UsageError) as told:
        load_settings({"HOME": "/h"}, config_file=file)
    assert str(told.value) == f"{file}: table peers: got 65 peers, want at most 64"


AT = '"tcp://pi2:7600"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("peering = 1", "key peering: got 1, want a table"),
        (
            "peering.port = 1",
            "key peering.port: is unknown, want one of listen, name, beat_s, silent_s, gone_s, "
            "plaintext_streams",
        ),
        (
            "peering.plaintext_streams = 1",
            "key peering.plaintext_streams: got 1, want true or false",
        ),
        (
            "peering.listen = 'tcp://pi1:7600'",
            'key peering.listen: got "tcp://pi1:7600", want an IP address of this device to listen '
            "at, or 0.0.0.0 or [::] for all",
        ),
        (
            "peering.listen = 7600",
            "key peering.listen: got 7600, want tcp://ADDRESS:PORT, e.g. tcp://192.168.1.20:7600",
        ),
        (
            "peering.name = 'pi 1'",
            'key peering.name: got "pi 1", want 1 to 64 of A-Z a-z 0-9 . _ - beginning with a '
            "letter or digit",
        ),
        (
            "peering.name = ''",
            'key peering.name: got "", want 1 to 64 of A-Z a-z 0-9 . _ - beginning with a letter '
            "or digit",
        ),
        *(
            (
                f"peering.{key} = {value}",
                f"key peering.{key}: got {shown}, want a finite number of seconds above 0",
            )
            for key in ("beat_s", "silent_s", "gone_s")
            for value, shown in (
                ("0", "0"),
                ("-1.5", "-1.5"),
                ("nan", "nan"),
                ("inf", "inf"),
                ("true", "true"),
                ("'1'", '"1"'),
            )
        ),
        *(
            (
                f"peering.{key} = {value}",
                f"table peering: got beat_s {beat}, silent_s {silent}, gone_s {gone}; want beat_s "
                "at most half of silent_s, and silent_s at most gone_s",
            )
            for key, value, beat, silent, gone in (
                ("beat_s", "0.51", "0.51", "1", "10"),
                ("silent_s", "0.4", "0.25", "0.4", "10"),
                ("silent_s", "11", "0.25", "11", "10"),
                ("gone_s", "0.9", "0.25", "1", "0.9"),
            )
        ),
        ("peers = 1", "key peers: got 1, want a table for each peer, as [peers.pi2]"),
        ("peers.pi2 = 1", "key peers.pi2: got 1, want a table, as [peers.pi2]"),
        (
            "[peers.pi2]",
            "table peers.pi2: has no key, want key = the peer's public key",
        ),
        (
            f"peers.pi2 = {{ key = '{KEY}', name = 'x' }}",
            "key peers.pi2.name: is unknown, want one of key, endpoints",
        ),
        (
            f"peers.pi2.key = '{KEY[:-1]}'",
            f'key peers.pi2.key: got "{KEY[:-1]}", want a public key of 52 letters and digits, as '
            "`edge-agent key show` prints on the other device",
        ),
        (
            "peers.pi2.key = 1",
            "key peers.pi2.key: got 1, want a public key of 52 letters and digits, as `edge-agent "
            "key show` prints on the other device",
        ),
        (
            f"peers.'pi 2'.key = '{KEY}'",
            'table peers: name: got "pi 2", want 1 to 64 of A-Z a-z 0-9 . _ - beginning with a '
            "letter or digit",
        ),
        (
            f"peers.a.key = '{KEY}'\npeers.b.key = '{KEY.upper()}'",
            f'key peers.b.key: got "{KEY}", want another key for each peer',
        ),
        (
            f"peers.pi2 = {{ key = '{KEY}', endpoints = {AT} }}",
            f"key peers.pi2.endpoints: got {AT}, want a list of at most 16",
        ),
        (
            f"peers.pi2 = {{ key = '{KEY}', endpoints = [{', '.join(['1'] * 17)}] }}",
            f"key peers.pi2.endpoints: got [{', '.join(['1'] * 17)}], want a list of at most 16",
        ),
        (
            f"peers.pi2 = {{ key = '{KEY}', endpoints = [{AT}, 'pi2'] }}",
            'key peers.pi2.endpoints: got "pi2", want tcp://ADDRESS:PORT, e.g. '
            "tcp://192.168.1.20:7600",
        ),
        (
            f"peers.pi2 = {{ key = '{KEY}', endpoints = ['tcp://pi2:0'] }}",
            'key peers.pi2.endpoints: got "tcp://pi2:0", want the address and port at which the '
            "other agent listens",
        ),
    ],
)
def test_what_is_wrong_about_other_devices_is_told_whole(
    tmp_path: Path, text: str, message: str
) -> None:
    file = written(tmp_path / "c.toml", text)
    with pytest.raises(UsageError) as told:
        load_settings({"HOME": "/h"}, config_file=file)
    assert str(told.value) == f"{file}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sokcet = 1",
            "key sokcet: is unknown, want one of socket, state, cache, limits, planning, "
            "specialising, units, peering, peers, log_level",
        ),
        ("socket = 1", "key socket: got 1, want a path in quotes"),
        ('state = "x"', 'key state: got "x", want a path that begins with / or ~/'),
        (
            'log_level = "loud"',
            'key log_level: got "loud", want one of debug, info, warning, error',
        ),
        ("log_level = []", "key log_level: got [], want one of debug, info, warning, error"),
        ("limits = 3", "key limits: got 3, want a table"),
        ("limits.max_request_bytes = 0", "key limits.max_request_bytes: got 0, want a whole"),
        ("limits.max_request_bytes = true", "key limits.max_request_bytes: got true, want a whole"),
        ("limits.max_request_bytes = 1.5", "key limits.max_request_bytes: got 1.5, want a whole"),
        ("limits.most = 1", "key limits.most: is unknown, want one of max_requests_in_flight, "),
        (
            "specialising.most_shapes = -1",
            "key specialising.most_shapes: got -1, want a whole number of at least 0",
        ),
        ("socket =", "is no TOML file: "),
        (
            "socket = " + "[" * 100_000,
            "is no TOML file: its tables or lists are nested too deep",
        ),
        (
            "limits.most = " + "9" * 5_000,
            "is no TOML file: it has a number of more than 4300 digits",
        ),
        (
            "units.cuda.options.a = " + "9" * 400,
            f"key units.cuda.options.a: got {'9' * 80}…, want a text, a number",
        ),
        (
            "planning.probe_s = 0x" + "f" * 5_000,
            "key planning.probe_s: got a number of more than 4300 digits, want a finite number of",
        ),
        (
            "planning.probe_s = 1979-05-27",
            "key planning.probe_s: got 1979-05-27, want a finite number",
        ),
        ("limits = [{ a = 'x' }]", 'key limits: got [{ a = "x" }], want a table'),
        (
            "planning.probe_s = 0",
            "key planning.probe_s: got 0, want a finite number of seconds above 0",
        ),
        ("units = 1", "key units: got 1, want a table for each unit, as [units.cpu]"),
        ("units.cuda = 1", "key units.cuda: got 1, want a table, as [units.cuda]"),
        ("[units.GPU]", 'key units: got "GPU", want names of 1 to 32 of a-z 0-9 _ -, a letter'),
        (
            "units.cuda.on = true",
            "key units.cuda.on: is unknown, want one of off, threads, memory_bytes, options, "
            "provider, library, kind",
        ),
        ("[units.host]", 'key units: got "host", want names of 1 to 32 of a-z 0-9 _ -, a letter'),
        (
            "units.x.provider = 'CPUExecutionProvider'",
            'key units.x.provider: got "CPUExecutionProvider", want another: that is the unit cpu',
        ),
        ("units.cuda.id = 'x'", "key units.cuda.id: is unknown, want one of off, "),
        ("units.cuda.off = 1", "key units.cuda.off: got 1, want true or false"),
        ("units.cuda.threads = 0", "key units.cuda.threads: got 0, want a whole number of at le"),
        ("units.cuda.threads = true", "key units.cuda.threads: got true, want a whole number of"),
        ("units.cuda.memory_bytes = -1", "key units.cuda.memory_bytes: got -1, want a whole num"),
        ("units.cuda.options = 1", "key units.cuda.options: got 1, want a table"),
        ("units.cuda.options.a = []", "key units.cuda.options.a: got [], want a text, a number, "),
        ("units.cuda.options.a = nan", "key units.cuda.options.a: got nan, want a text, a number"),
        ("units.x.provider = ''", 'key units.x.provider: got "", want the name of an execution '),
        ("units.x.kind = 'TPU'", 'key units.x.kind: got "TPU", want one of CPU, GPU, NPU'),
        ("units.x.library = 'lib.so'", 'key units.x.library: got "lib.so", want a path that begi'),
        (
            "units.x.library = '/lib.so'",
            "key units.x.library: needs units.x.provider, the name of the provider that the",
        ),
        ("units.cpu.off = true", "key units.cpu.off: the processor cannot be switched off: plain "),
        ("units.cpu.options.a = 1", "key units.cpu.options: its provider has none; leave it out"),
        ("units.cpu.kind = 'GPU'", "key units.cpu.kind: it is always CPU; leave it out"),
    ],
)
def test_a_wrong_file_is_refused_naming_file_key_got_and_want(
    tmp_path: Path, text: str, message: str
) -> None:
    file = written(tmp_path / "c.toml", text)
    with pytest.raises(UsageError) as told:
        load_settings({"HOME": "/h"}, config_file=file)
    assert str(told.value).startswith(f"{file}: {message}")


def test_a_named_config_file_must_exist_and_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.toml: no such config file"):
        load_settings({"HOME": "/h"}, config_file=tmp_path / "gone.toml")
    with pytest.raises(UsageError, match="cannot read the config file: Is a directory"):
        load_settings({"HOME": "/h"}, config_file=tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is no TOML file"):
        load_settings({"HOME": "/h"}, config_file=tmp_path / "binary")


def test_a_client_needs_the_config_file_only_where_nothing_else_names_the_socket(
    tmp_path: Path,
) -> None:
    home = {"HOME": str(tmp_path)}
    folder = tmp_path / ".config/edge-agent"
    folder.mkdir(parents=True)
    written(folder / "config.toml", 'socket = "/from/file"')
    assert find_socket(home) == Path("/from/file")
    written(folder / "config.toml", "sockett = 1")
    assert find_socket(home, "/given") == Path("/given")
    assert find_socket(home | {"EDGE_AGENT_SOCKET": "/named"}) == Path("/named")
    with pytest.raises(UsageError, match="sockett"):
        find_socket(home)
    with pytest.raises(UsageError, match="got a path of 108 bytes"):
        find_socket(home, "/" + "a" * 107)


def test_a_socket_path_of_107_bytes_is_allowed_and_of_108_refused() -> None:
    longest = "/" + "ä" * 53
    assert load_settings({"HOME": "/h"}, socket=longest).socket == Path(longest)
    with pytest.raises(UsageError, match="got a path of 108 bytes, want at most 107; choose a sh"):
        load_settings({"HOME": "/h"}, socket=longest + "a")


def test_the_socket_folder_is_created_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "run"
    make_socket_folder(folder)
    make_socket_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o1777])
def test_a_socket_folder_that_others_can_enter_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UsageError, match=f"run: got mode {mode:04o}, want 0700; .*chmod 700"):
        make_socket_folder(folder)


def test_a_socket_folder_that_is_a_link_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="link: is a link or no folder"):
        make_socket_folder(tmp_path / "link")
    with pytest.raises(UsageError, match="cannot create the socket's folder: File exists"):
        make_socket_folder(tmp_path / "file")


@pytest.mark.skipif(os.getuid() != 0, reason="giving a folder away needs root")
def test_a_socket_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, -1)
    with pytest.raises(UsageError, match="run: belongs to user 12345, want 0"):
        make_socket_folder(folder)
