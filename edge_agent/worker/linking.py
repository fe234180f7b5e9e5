"""The connections of one divided epoch to the workers of other devices, until the epoch ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.errors import EdgeAgentError, ProtocolError
from edge_agent.peers import KeyPair, PublicKey
from edge_agent.plans import Epoch
from edge_agent.stages import OWNER, Division
from edge_agent.tensors import TensorSpec
from edge_agent.transport.curve import make_keys
from edge_agent.wire.hosting import (
    Closed,
    Dial,
    DividedPart,
    Linked,
    Listen,
    Listening,
    Neighbour,
    Unlinked,
    key_problem,
)
from edge_agent.wire.messages import Message, error_text
from edge_agent.worker.flows import Arrived, Steering
from edge_agent.worker.stages import Origin, StageRunner, Stages
from edge_agent.worker.streams import Stream, Streams

DIAL_S: Final = 2.0
"""An endpoint at which nobody has answered by then is given up for the next one."""


@dataclass(slots=True)
class _Link:
    """To one neighbour."""

    neighbour: Neighbour
    tries: int = 0
    """How often it was begun: what is told of an earlier try means nothing any more."""
    is_open: bool = False
    key: PublicKey | None = None
    rest: list[Endpoint] = field(default_factory=list)
    """Where else it may be."""
    timer: threading.Timer | None = None


class _Told:
    """Hears of one try to make a connection. Implements `streams.Receiver`."""

    def __init__(self, links: Links, link: _Link) -> None:
        self._links = links
        self._link = link
        self._number = link.tries

    def opened(self, stream: Stream) -> None:
        """See `streams.Receiver`."""
        self._links.opened(self._link, self._number, stream)

    def arrived(self, stream: Stream, arrived: Arrived) -> None:
        """See `streams.Receiver`."""
        self._links.stages.arrived(stream, arrived)

    def steered(self, stream: Stream, message: Steering) -> None:
        """See `streams.Receiver`."""
        self._links.stages.steered(stream, message)

    def broken(self, stream: Stream, why: str, *, is_offence: bool) -> None:
        """See `streams.Receiver`."""
        self._links.stages.broken(stream, why, is_offence=is_offence)
        self._links.broken(self._link, self._number, why, is_offence=is_offence)


class Links:
    """See the module. Its methods may be called from any thread."""

    def __init__(
        self,
        epoch: Epoch,
        part: DividedPart,
        runners: Mapping[int, StageRunner],
        tell: Callable[[Message], None],
        origin: Origin | None = None,
        outputs: Sequence[TensorSpec] = (),
    ) -> None:
        """`runners` are of the stages that run here; `tell` sends to the agent. `origin` is there
        if this is the owner's worker, and `outputs` are then those of the whole model.

        Raises:
            RuntimeUnavailable: this libzmq cannot encrypt.
        """
        self.epoch = epoch
        self.keys: KeyPair | None = make_keys() if part.is_encrypted else None
        """Of this epoch in this worker alone."""
        self._tell = tell
        self._links = {n.device: _Link(n) for n in part.neighbours}
        self._changing = threading.Lock()
        self._is_closed = False
        self.stages = Stages(
            epoch,
            Division(crossings=part.crossings),
            runners,
            instances=part.threads,
            origin=origin,
            specs={OWNER: outputs, **{stage.number: stage.inputs for stage in part.stages}},
        )
        self._streams = Streams()

    def listen(self, message: Listen) -> None:
        """Let a neighbour connect, and tell at which port.

        Raises:
            ProtocolError: it is no neighbour, or was to connect before.
        """
        self._check_key(message)
        link = self._unused(message.device)
        admitted = None if message.key is None else PublicKey(message.key)
        told = _Told(self, link)
        window_bytes = link.neighbour.window_bytes
        try:
            stream = self._streams.listen(message.at, self.keys, admitted, told, window_bytes)
        except EdgeAgentError as error:
            self._cannot(message.device, error_text(error))
            return
        port = stream.endpoint.port
        self._tell(Listening(epoch=self.epoch, device=message.device, port=port))

    def dial(self, message: Dial) -> None:
        """Connect to a neighbour.

        Raises:
            ProtocolError: as `listen`.
        """
        self._check_key(message)
        link = self._unused(message.device)
        link.key = None if message.key is None else PublicKey(message.key)
        link.rest = list(message.to)
        self._dial_next(link, "there is nowhere to connect to")

    def _check_key(self, message: Listen | Dial) -> None:
        if problem := key_problem(message.key, is_encrypted=self.keys is not None):
            raise ProtocolError(f"told to connect to {message.device}: got {problem}")

    def _unused(self, device: DeviceId) -> _Link:
        with self._changing:
            link = self._links.get(device)
            if link is None or link.tries:
                raise ProtocolError(f"told to connect to {device}: it is no neighbour, or was told")
            link.tries = 1
            return link

    def _dial_next(self, link: _Link, why: str) -> None:
        device, number = link.neighbour.device, link.tries
        with self._changing:
            if self._is_closed or link.is_open:
                return
            if not link.rest:
                self._cannot(device, why)
                return
            to = link.rest.pop(0)
            link.timer = threading.Timer(DIAL_S, self._next_try, (link, number, f"nothing at {to}"))
            link.timer.daemon = True
            link.timer.start()
        # Not while the lock is held: the thread of the streams may wait for it.
        try:
            self._streams.dial(
                to, self.keys, link.key, _Told(self, link), link.neighbour.window_bytes
            )
        except EdgeAgentError as error:
            self._next_try(link, number, error_text(error))

    def _next_try(self, link: _Link, number: int, why: str) -> None:
        with self._changing:
            if link.is_open or link.tries != number or self._is_closed:
                return
            link.tries += 1
            if link.timer is not None:
                link.timer.cancel()
        self._dial_next(link, why)

    # ---- what the streams tell, on their thread

    def opened(self, link: _Link, number: int, stream: Stream) -> None:
        """A connection is there."""
        with self._changing:
            is_late = link.tries != number or self._is_closed
            if not is_late:
                link.is_open = True
                if link.timer is not None:
                    link.timer.cancel()
            is_linked = all(one.is_open for one in self._links.values())
        if is_late:
            stream.close()
            return
        self.stages.connect(stream, link.neighbour.stages)
        if is_linked:
            self._tell(Linked(epoch=self.epoch))

    def broken(self, link: _Link, number: int, why: str, *, is_offence: bool) -> None:
        """A connection is over, or could not be made; `is_offence`: the other side broke the
        rules."""
        with self._changing:
            if link.tries != number or self._is_closed:
                return
            tries_another = not link.is_open and bool(link.rest) and not is_offence
        if tries_another:
            # Dialling waits for the thread of the streams, which this is.
            threading.Thread(
                target=self._next_try, args=(link, number, why), name="dial", daemon=True
            ).start()
        else:
            self._cannot(link.neighbour.device, why, is_offence=is_offence)

    def _cannot(self, device: DeviceId, why: str, *, is_offence: bool = False) -> None:
        told = Unlinked(epoch=self.epoch, device=device, why=why, is_offence=is_offence)
        self._tell(told)

    def close(self) -> bool:
        """End all connections, and the stages; whether none of them runs any more."""
        with self._changing:
            self._is_closed = True
            timers = [link.timer for link in self._links.values() if link.timer is not None]
        for timer in timers:
            timer.cancel()
        self._streams.stop()
        has_ended = self.stages.close()
        self._tell(Closed(epoch=self.epoch))
        return has_ended
