"""Where the agent keeps things and what it admits: defaults, config file, environment, arguments.

Nothing else in this package reads an environment variable.
"""

from __future__ import annotations

import hashlib
import math
import os
import pwd
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NoReturn, TypeGuard

import msgspec

from edge_agent.devices import Options, UnitId, UnitKind
from edge_agent.endpoints import Endpoint, parse_listen, parse_peer_endpoint
from edge_agent.errors import UsageError
from edge_agent.literals import literal, unreadable
from edge_agent.peers import (
    MAX_BEAT_S,
    MAX_ENDPOINTS,
    MAX_PEERS,
    MIN_BEAT_S,
    Origin,
    Peer,
    check_device_name,
    check_key,
)
from edge_agent.profiles import HOST

_APP = "edge-agent"
_SOCKET = "agent.sock"
_UNIT_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_CPU = "cpu"
_CPU_PROVIDER = "CPUExecutionProvider"
_NOT_OF_THE_CPU: Final[Mapping[str, str]] = {
    "off": "the processor cannot be switched off: plain ONNX Runtime on it is what everything "
    "falls back to; want false, or threads = N for fewer of its cores",
    "options": "its provider has none; leave it out",
    "provider": f"it is always {_CPU_PROVIDER}; leave it out",
    "library": "its provider is in ONNX Runtime itself; leave it out",
    "kind": "it is always CPU; leave it out",
}
_MAX_SOCKET_PATH_BYTES = 107
"""sockaddr_un(7) has 108 bytes, one of them for the final NUL."""


class LogLevel(StrEnum):
    """How much the agent tells on stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the agent admits and keeps; more is refused, answered `busy`, or removed again."""

    max_requests_in_flight: int = 256
    max_bytes_in_flight: int = 1 << 30
    """Inputs and outputs of all requests in flight."""
    max_request_bytes: int = 256 << 20
    """Inputs of one request."""
    max_model_bytes: int = 2**31 - 1
    """The model file itself: protobuf reads no larger one."""
    max_external_bytes: int = 64 << 30
    """External data of one model."""
    max_compiled_bytes: int = 8 << 30
    """What is kept of what can be compiled again, if that is less than half of the disk that is
    free without it: of a model in use all layouts are kept, two to four times its weights."""
    max_hosted_bytes: int = 16 << 30
    """Tensors of all stages that are hosted for other devices, each counted once, if that is less
    than half of the disk that is free without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """How long the making of one plan may measure; less time gives a less certain plan."""

    profile_s: float = 10.0
    """Measuring the parts of the model, for each unit that takes some of it."""
    verify_s: float = 8.0
    """Comparing the best plans with plain ONNX Runtime, for each unit in them."""
    unit_s: float = 180.0
    """How long the provider of a unit may say nothing, which may be compiling, before the unit is
    left out of the plan."""
    probe_s: float = 60.0
    """Trying one compute unit; one that takes longer is refused."""
    planner_s: float = 120.0
    """One request to the planner, which gives way to everything else; it is ended after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Specialising:
    """How far subgraphs are specialised for the shapes that are asked often."""

    most_shapes: int = 4
    """Of each model, at once; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peering:
    """How this device meets others."""

    listen: Endpoint | None = None
    """Where the agents of other devices reach this one; None: nothing listens."""
    name: str = ""
    """What this device calls itself; "": by its hostname."""
    beat_s: float = 0.25
    """How often heartbeats go to each peer."""
    silent_s: float = 1.0
    """After so long without a heartbeat a peer counts as lost."""
    gone_s: float = 10.0
    """After so long, as gone."""
    plaintext_streams: bool = False
    """Whether tensors cross to other devices unencrypted: for benchmarks, on loopback and in
    network namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSettings:
    """What the table `[units.ID]` of the config file says of one compute unit."""

    id: UnitId
    file: Path
    """Where it says so."""
    off: bool = False
    """It is not used, nor is its library loaded."""
    threads: int | None = None
    """Most processor threads of it; None: as many as there are."""
    memory_bytes: int | None = None
    """Most bytes of weights and activations there; None: as many as there are."""
    options: Options = ()
    """Of its provider; they override ours."""
    provider: str = ""
    """Its provider's name; "" for the one that goes by this id."""
    library: Path | None = None
    """Of a plugin provider that no installed package brings; absolute."""
    kind: UnitKind | None = None
    """Of a provider that edge-agent does not know."""

    def key(self, name: str) -> str:
        """How a message names one of its keys: "[units.webgpu] off in /etc/config.toml"."""
        return f"[units.{self.id}] {name} in {self.file}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a user can set; all paths are absolute."""

    socket: Path
    """The local socket."""
    state: Path
    """Folder of models, plans and the registry: to be kept."""
    cache: Path
    """Folder of compiled subgraphs and profiles: made again if it is lost."""
    limits: Limits = Limits()
    planning: Budgets = Budgets()
    specialising: Specialising = Specialising()
    units: tuple[UnitSettings, ...] = ()
    """In the order of the config file; others are as they are found."""
    peering: Peering = Peering()
    peers: tuple[Peer, ...] = ()
    """That stand in the config file."""
    log_level: LogLevel = LogLevel.INFO
    config_file: Path | None = None
    """The file that was read; None: there is none."""


def load_settings(
    environ: Mapping[str, str],
    *,
    socket: str | Path | None = None,
    state: str | Path | None = None,
    config_file: str | Path | None = None,
) -> Settings:
    """The settings from, each overriding the one before: defaults, config file, `environ`
    (EDGE_AGENT_SOCKET, EDGE_AGENT_STATE), arguments.

    The config file is `config_file`, which must exist, or else
    $XDG_CONFIG_HOME/edge-agent/config.toml if that exists. The cache lies in the state folder if
    that alone is chosen; so does the socket if `environ` chooses it.
    Raises: UsageError, naming file, key, what it got and what it wants.
    """
    home = _home(environ)
    default_file = _xdg(environ, "XDG_CONFIG_HOME", home / ".config") / _APP / "config.toml"
    path = _absolute(default_file if config_file is None else config_file)
    file = _read_file(path, home)
    read = None if file is None else path
    if file is None and config_file is not None:
        raise UsageError(f"{config_file}: no such config file; write it, or leave out --config")
    file = file or _FromFile()
    chosen_state = state or environ.get("EDGE_AGENT_STATE") or file.state
    chosen_socket = socket or environ.get("EDGE_AGENT_SOCKET") or file.socket
    state_folder = _absolute(
        chosen_state or _xdg(environ, "XDG_STATE_HOME", home / ".local/state") / _APP
    )
    default_cache = _xdg(environ, "XDG_CACHE_HOME", home / ".cache") / _APP
    default_socket = _default_socket(environ, state_folder, is_told=state is not None)
    return Settings(
        socket=_checked_socket(_absolute(chosen_socket or default_socket)),
        state=state_folder,
        cache=file.cache or (state_folder / "cache" if chosen_state else default_cache),
        limits=file.limits,
        planning=file.planning,
        specialising=file.specialising,
        units=file.units,
        peering=file.peering,
        peers=file.peers,
        log_level=file.log_level,
        config_file=read,
    )


def find_socket(environ: Mapping[str, str], socket: str | Path | None = None) -> Path:
    """Where the agent listens that a client means: at `socket`, else where `environ` says, else
    where the config file says or by default. A config file that is not needed is not read.

    Raises: UsageError, as `load_settings`.
    """
    chosen = socket or environ.get("EDGE_AGENT_SOCKET")
    if chosen:
        return _checked_socket(_absolute(chosen))
    return load_settings(environ).socket


def encode_settings(settings: Settings) -> str:
    """The settings as JSON, for a child process."""
    return msgspec.json.encode(settings, enc_hook=str).decode()


def decode_settings(text: str) -> Settings:
    """The settings that `encode_settings` wrote."""
    return msgspec.json.decode(text, type=Settings, dec_hook=lambda _, value: Path(value))


def settings_key(settings: Settings) -> str:
    """A text that two agents share whose config files say the same but for places."""
    place = Path("/")
    same = replace(
        settings,
        socket=place,
        state=place,
        cache=place,
        config_file=None,
        peering=Peering(),
        peers=(),
        units=tuple(replace(unit, file=place) for unit in settings.units),
    )
    return hashlib.sha256(encode_settings(same).encode()).hexdigest()[:16]


def encode_units(units: Sequence[UnitSettings]) -> str:
    """The settings of compute units as JSON, for a child process."""
    return msgspec.json.encode(units, enc_hook=str).decode()


def decode_units(text: str) -> tuple[UnitSettings, ...]:
    """The settings that `encode_units` wrote."""
    return msgspec.json.decode(
        text, type=tuple[UnitSettings, ...], dec_hook=lambda _, value: Path(value)
    )


def make_socket_folder(folder: Path) -> None:
    """Create the folder of the local socket with mode 0700; one that is there must be safe.

    Raises: UsageError, naming what is wrong with it and what to do.
    """
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot create the socket's folder: {error.strerror}; "
            "choose another place with --socket"
        ) from error
    if reason := why_unsafe(folder):
        raise UsageError(
            f"{folder}: {reason}; the socket needs a folder of its own: "
            "`chmod 700` this one if it has no other use, or choose another with --socket"
        )


def why_unsafe(folder: Path) -> str | None:
    """What is wrong with a folder that is to hold the local socket; None if nothing is."""
    try:
        found = folder.lstat()
    except OSError as error:
        return f"cannot be examined: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return "is a link or no folder"
    if found.st_uid != os.getuid():
        return f"belongs to user {found.st_uid}, want {os.getuid()}"
    if (mode := stat.S_IMODE(found.st_mode)) != 0o700:
        return f"got mode {mode:04o}, want 0700"
    return None


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)


def _xdg(environ: Mapping[str, str], name: str, default: Path) -> Path:
    # The XDG Base Directory Specification: a relative path is invalid and to be ignored.
    path = Path(environ.get(name, ""))
    return path if path.is_absolute() else default


def _default_socket(environ: Mapping[str, str], state: Path, *, is_told: bool) -> Path:
    run = Path(environ.get("XDG_RUNTIME_DIR", ""))
    # Where the environment says the folder, all commands find the agent of that folder in it.
    if (is_told or not environ.get("EDGE_AGENT_STATE")) and run.is_absolute() and _is_ours(run):
        return run / _APP / _SOCKET
    return state / "run" / _SOCKET


def _is_ours(folder: Path) -> bool:
    # `su` keeps XDG_RUNTIME_DIR: the folder then belongs to another user, or is gone.
    try:
        return folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _absolute(path: str | Path) -> Path:
    return Path(os.path.abspath(path))


def _checked_socket(path: Path) -> Path:
    got_bytes = len(os.fsencode(path))
    if got_bytes > _MAX_SOCKET_PATH_BYTES:
        raise UsageError(
            f"socket {path}: got a path of {got_bytes} bytes, want at most "
            f"{_MAX_SOCKET_PATH_BYTES}; choose a shorter one with --socket or EDGE_AGENT_SOCKET"
        )
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class _FromFile:
    socket: Path | None = None
    state: Path | None = None
    cache: Path | None = None
    limits: Limits = Limits()
    planning: Budgets = Budgets()
    specialising: Specialising = Specialising()
    units: tuple[UnitSettings, ...] = ()
    peering: Peering = Peering()
    peers: tuple[Peer, ...] = ()
    log_level: LogLevel = LogLevel.INFO


def _read_file(path: Path, home: Path) -> _FromFile | None:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot read the config file: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no TOML file: {unreadable(error)}") from error
    return _Reader(path, home).settings(table)


class _Reader:
    """Checks one config file, and names it in every error."""

    def __init__(self, path: Path, home: Path) -> None:
        self._path = path
        self._home = home

    def settings(self, table: dict[str, object]) -> _FromFile:
        known = [field.name for field in fields(_FromFile)]
        self._check_keys("", table, known)
        return _FromFile(
            socket=self._place(table, "socket"),
            state=self._place(table, "state"),
            cache=self._place(table, "cache"),
            limits=self._limits(table.get("limits", {})),
            planning=self._budgets(table.get("planning", {})),
            specialising=self._specialising(table.get("specialising", {})),
            units=self._units(table.get("units", {})),
            peering=self._peering(table.get("peering", {})),
            peers=self._peers(table.get("peers", {})),
            log_level=self._log_level(table.get("log_level", LogLevel.INFO.value)),
        )

    def _place(self, table: dict[str, object], key: str) -> Path | None:
        return self._path_of(key, table[key]) if key in table else None

    def _path_of(self, key: str, value: object) -> Path:
        if not isinstance(value, str):
            self._refuse(key, value, "a path in quotes")
        path = self._home / value[2:] if value.startswith("~/") else Path(value)
        if not path.is_absolute():
            self._refuse(key, value, "a path that begins with / or ~/")
        return _absolute(path)

    def _log_level(self, value: object) -> LogLevel:
        if value not in list(LogLevel):
            self._refuse("log_level", value, f"one of {', '.join(LogLevel)}")
        return LogLevel(str(value))

    def _limits(self, value: object) -> Limits:
        known = [field.name for field in fields(Limits)]
        return Limits(**self._whole_numbers("limits", value, known, least=1))

    def _specialising(self, value: object) -> Specialising:
        known = [field.name for field in fields(Specialising)]
        return Specialising(**self._whole_numbers("specialising", value, known, least=0))

    def _whole_numbers(
        self, name: str, value: object, known: list[str], *, least: int
    ) -> dict[str, int]:
        if not isinstance(value, dict):
            self._refuse(name, value, "a table")
        self._check_keys(f"{name}.", value, known)
        for key, number in value.items():
            self._whole_number(f"{name}.{key}", number, least=least)
        return value

    def _whole_number(self, key: str, value: object, *, least: int) -> int:
        # A TOML boolean is a Python int too.
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self._refuse(key, value, f"a whole number of at least {least}")
        return value

    def _budgets(self, value: object) -> Budgets:
        table = self._table("planning", value, Budgets)
        return Budgets(**{key: self._seconds(f"planning.{key}", table[key]) for key in table})

    def _table(self, name: str, value: object, kind: type) -> dict[str, Any]:
        """A table with the fields of `kind`."""
        if not isinstance(value, dict):
            self._refuse(name, value, "a table")
        self._check_keys(f"{name}.", value, [field.name for field in fields(kind)])
        return value

    def _seconds(self, key: str, number: Any) -> float:
        if isinstance(number, bool) or not _is_finite(number) or number <= 0:
            self._refuse(key, number, "a finite number of seconds above 0")
        return number

    def _peering(self, value: object) -> Peering:
        found = dict(self._table("peering", value, Peering))
        for key in found:
            name = f"{self._path}: key peering.{key}"
            match key:
                case "listen":
                    found[key] = parse_listen(name, found[key])
                case "name":
                    check_device_name(name, found[key])
                case "plaintext_streams":
                    if not isinstance(found[key], bool):
                        self._refuse("peering.plaintext_streams", found[key], "true or false")
                case _:
                    self._seconds(f"peering.{key}", found[key])
        peering = Peering(**found)
        if not MIN_BEAT_S <= peering.beat_s <= MAX_BEAT_S:
            self._refuse(
                "peering.beat_s", peering.beat_s, f"{MIN_BEAT_S:g} to {MAX_BEAT_S:g} seconds"
            )
        if not 2 * peering.beat_s <= peering.silent_s <= peering.gone_s:
            raise UsageError(
                f"{self._path}: table peering: got beat_s {peering.beat_s:g}, silent_s "
                f"{peering.silent_s:g}, gone_s {peering.gone_s:g}; want beat_s at most half of "
                "silent_s, and silent_s at most gone_s"
            )
        return peering

    def _peers(self, value: object) -> tuple[Peer, ...]:
        if not isinstance(value, dict):
            self._refuse("peers", value, "a table for each peer, as [peers.pi2]")
        if len(value) > MAX_PEERS:
            raise UsageError(
                f"{self._path}: table peers: got {len(value)} peers, want at most {MAX_PEERS}"
            )
        peers = tuple(self._peer(name, table) for name, table in value.items())
        for number, peer in enumerate(peers):
            if any(peer.key == other.key for other in peers[:number]):
                self._refuse(f"peers.{peer.name}.key", peer.key, "another key for each peer")
        return peers

    def _peer(self, name: str, table: object) -> Peer:
        key = f"peers.{name}"
        if not isinstance(table, dict):
            self._refuse(key, table, f"a table, as [peers.{name}]")
        self._check_keys(f"{key}.", table, ["key", "endpoints"])
        if "key" not in table:
            raise UsageError(
                f"{self._path}: table {key}: has no key, want key = the peer's public key"
            )
        endpoints = table.get("endpoints", [])
        if not isinstance(endpoints, list) or len(endpoints) > MAX_ENDPOINTS:
            self._refuse(f"{key}.endpoints", endpoints, f"a list of at most {MAX_ENDPOINTS}")
        written = tuple(
            parse_peer_endpoint(f"{self._path}: key {key}.endpoints", one) for one in endpoints
        )
        return Peer(
            key=check_key(f"{self._path}: key {key}.key", table["key"]),
            name=check_device_name(f"{self._path}: table peers: name", name),
            endpoints=written,
            written=written,
            origin=Origin.CONFIGURED,
        )

    def _units(self, value: object) -> tuple[UnitSettings, ...]:
        if not isinstance(value, dict):
            self._refuse("units", value, "a table for each unit, as [units.cpu]")
        return tuple(self._unit(name, table) for name, table in value.items())

    def _unit(self, name: str, table: object) -> UnitSettings:
        key = f"units.{name}"
        if not _UNIT_ID.fullmatch(name) or name == HOST:
            want = f"names of 1 to 32 of a-z 0-9 _ -, a letter first, and not {HOST}"
            self._refuse("units", name, want)
        if not isinstance(table, dict):
            self._refuse(key, table, f"a table, as [units.{name}]")
        known = [field.name for field in fields(UnitSettings)]
        self._check_keys(f"{key}.", table, [k for k in known if k not in ("id", "file")])
        if name == _CPU:
            self._check_cpu(table)
        unit = UnitSettings(
            id=UnitId(name),
            file=self._path,
            options=self._options(f"{key}.options", table.get("options", {})),
            **{k: self._unit_value(f"{key}.{k}", k, table[k]) for k in table if k != "options"},
        )
        if unit.provider == _CPU_PROVIDER:
            self._refuse(f"{key}.provider", unit.provider, "another: that is the unit cpu")
        if unit.library is not None and not unit.provider:
            raise UsageError(
                f"{self._path}: key {key}.library: needs {key}.provider, the name of the provider "
                "that the library brings"
            )
        return unit

    def _check_cpu(self, table: dict[str, object]) -> None:
        for key, why in _NOT_OF_THE_CPU.items():
            if table.get(key, False) is not False:
                raise UsageError(f"{self._path}: key units.cpu.{key}: {why}")

    def _unit_value(self, key: str, name: str, value: object) -> Any:
        match name:
            case "off":
                if not isinstance(value, bool):
                    self._refuse(key, value, "true or false")
                return value
            case "threads" | "memory_bytes":
                return self._whole_number(key, value, least=1)
            case "library":
                return self._path_of(key, value)
            case "kind":
                if value not in list(UnitKind):
                    self._refuse(key, value, f"one of {', '.join(UnitKind)}")
                return UnitKind(str(value))
            case _:
                if not isinstance(value, str) or not value:
                    self._refuse(key, value, "the name of an execution provider in quotes")
                return value

    def _options(self, key: str, value: object) -> Options:
        if not isinstance(value, dict):
            self._refuse(key, value, "a table")
        return tuple(sorted((k, self._option(f"{key}.{k}", v)) for k, v in value.items()))

    def _option(self, key: str, value: object) -> str:
        if not _is_finite(value) and not isinstance(value, str):
            self._refuse(key, value, "a text, a number, true or false")
        # Most providers read "1" and "0" where they want a truth value.
        return str(int(value) if isinstance(value, bool) else value)

    def _check_keys(self, prefix: str, table: dict[str, object], known: list[str]) -> None:
        for key in table:
            if key not in known:
                raise UsageError(
                    f"{self._path}: key {prefix}{key}: is unknown, want one of {', '.join(known)}"
                )

    def _refuse(self, key: str, value: object, want: str) -> NoReturn:
        raise UsageError(f"{self._path}: key {key}: got {literal(value)}, want {want}")


def _is_finite(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that a float can hold; truth values are numbers to Python."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False
