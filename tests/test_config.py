import os
from pathlib import Path

import pytest

from edge_agent.config import (
    Limits,
    LogLevel,
    Settings,
    load_settings,
    make_socket_folder,
)
from edge_agent.errors import UsageError


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
    assert load_settings({}).state == Path("~/.local/state/edge-agent").expanduser()


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sokcet = 1",
            "key sokcet: is unknown, want one of socket, state, cache, limits, planning, "
            "specialising, log_level",
        ),
        ("socket = 1", "key socket: got 1, want a path in quotes"),
        ('state = "x"', "key state: got 'x', want a path that begins with / or ~/"),
        (
            'log_level = "loud"',
            "key log_level: got 'loud', want one of debug, info, warning, error",
        ),
        ("log_level = []", "key log_level: got [], want one of debug, info, warning, error"),
        ("limits = 3", "key limits: got 3, want a table"),
        ("limits.max_request_bytes = 0", "key limits.max_request_bytes: got 0, want a whole"),
        ("limits.max_request_bytes = true", "key limits.max_request_bytes: got True, want a whole"),
        ("limits.max_request_bytes = 1.5", "key limits.max_request_bytes: got 1.5, want a whole"),
        ("limits.most = 1", "key limits.most: is unknown, want one of max_requests_in_flight, "),
        (
            "specialising.most_shapes = -1",
            "key specialising.most_shapes: got -1, want a whole number of at least 0",
        ),
        ("socket =", "is no TOML file: "),
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
