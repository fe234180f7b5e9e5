"""Every error that a caller may have to act on.

    EdgeAgentError
    ├── BadRequest          the request itself is wrong: change it
    │   ├── UnknownModel    no model of that name is loaded
    │   ├── InputMismatch   an input or output differs from what the model declares
    │   ├── UnknownPeer     no peer of that name is known
    │   └── UsageError      an option, a setting or a file named by the user is wrong
    ├── ModelRefused        the model file cannot be accepted: tell the user
    ├── ModelQuarantined    the model killed its worker again and again, or what is stored of it
    │                       is damaged: load another version, or load it again
    ├── Busy                a limit is reached: try again later
    ├── DeadlineExceeded    the deadline passed before the answer was ready
    ├── AgentUnavailable    nothing answers at the socket: start the agent, or wait
    ├── AlreadyRunning      another agent owns this socket or store
    ├── RuntimeUnavailable  ONNX Runtime is missing, doubled or refuses a unit
    ├── RunFailed           the model failed on this input, and would again
    ├── StorageError        the disk is full, or a stored file is damaged
    ├── ProtocolError       the other side broke the protocol: never retry
    │   └── OtherVersion    it speaks another version of it: update one of them
    ├── PeerRefused         the other device does not admit this one: ask for a new token there
    ├── PeerLost            another device does not answer, or is gone: do without it, or wait
    ├── WorkerLost          a worker died: run again elsewhere (does not reach users)
    └── BuilderLost         a builder died: there is no new plan (does not reach users)

`code` is the word that stands on the wire and in `--json` output, and `exit_code` is what the
commands end with. Both are stable.
"""

from __future__ import annotations

from typing import ClassVar


class EdgeAgentError(Exception):
    """Base of all errors of this package; `str(error)` is fit for a user to read."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1


class BadRequest(EdgeAgentError):
    """The request is wrong in itself and would fail again unchanged."""

    code = "bad-request"
    exit_code = 2


class UnknownModel(BadRequest):
    """No model of that name is loaded."""

    code = "unknown-model"
    exit_code = 3


class InputMismatch(BadRequest):
    """An input is missing, surplus or of the wrong type or shape, or an output does not exist."""

    code = "input-mismatch"


class UnknownPeer(BadRequest):
    """No peer of that name, id or key is known."""

    code = "unknown-peer"
    exit_code = 16


class UsageError(BadRequest):
    """A command-line option, a setting or a file that the user named is wrong."""

    code = "usage"


class ModelRefused(EdgeAgentError):
    """The model cannot be accepted; the message names file, place and reason."""

    code = "model-refused"
    exit_code = 4


class ModelQuarantined(EdgeAgentError):
    """The model killed its worker again and again and is no longer run."""

    code = "model-quarantined"
    exit_code = 5


class Busy(EdgeAgentError):
    """A limit on requests or bytes in flight is reached; try again later."""

    code = "busy"
    exit_code = 6


class DeadlineExceeded(EdgeAgentError):
    """The deadline passed before an answer was ready."""

    code = "deadline-exceeded"
    exit_code = 7


class AgentUnavailable(EdgeAgentError):
    """No agent answers at the socket."""

    code = "agent-unavailable"
    exit_code = 8


class AlreadyRunning(EdgeAgentError):
    """Another agent owns this socket or this store."""

    code = "already-running"
    exit_code = 9


class RuntimeUnavailable(EdgeAgentError):
    """ONNX Runtime is missing, installed twice, or refuses the compute unit or the graph."""

    code = "runtime-unavailable"
    exit_code = 10


class RunFailed(EdgeAgentError):
    """ONNX Runtime failed on this input; the same input would fail again."""

    code = "run-failed"
    exit_code = 11


class StorageError(EdgeAgentError):
    """The disk is full or unwritable, or a stored file is damaged."""

    code = "storage"
    exit_code = 12


class ProtocolError(EdgeAgentError):
    """The other side broke the protocol; the connection is closed."""

    code = "protocol"
    exit_code = 13


class OtherVersion(ProtocolError):
    """The other side speaks another version of the protocol."""

    code = "other-version"


class WorkerLost(EdgeAgentError):
    """A worker process died; what was in flight is run again."""

    code = "worker-lost"
    exit_code = 14


class BuilderLost(EdgeAgentError):
    """A builder process died or was stopped; what serves goes on serving."""

    code = "builder-lost"
    exit_code = 15


class PeerRefused(EdgeAgentError):
    """Another device does not admit this one, or the token that was to admit it is not valid."""

    code = "peer-refused"
    exit_code = 17


class PeerLost(EdgeAgentError):
    """Another device does not answer, or is gone; what was in flight there is run elsewhere."""

    code = "peer-lost"
    exit_code = 18


def _tree(base: type[EdgeAgentError]) -> dict[str, type[EdgeAgentError]]:
    found = {base.code: base}
    for child in base.__subclasses__():
        found |= _tree(child)
    return found


def error_from_code(code: str, message: str) -> EdgeAgentError:
    """The error that `code` names, with `message`; an unknown code gives the base class."""
    return _tree(EdgeAgentError).get(code, EdgeAgentError)(message)
