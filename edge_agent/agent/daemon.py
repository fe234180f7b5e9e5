"""Puts the agent together, starts it, and ends it in order."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edge_agent.agent.answers import Answers
from edge_agent.agent.company import Company
from edge_agent.agent.controller import Controller
from edge_agent.agent.datapath import DataPath
from edge_agent.agent.deploying import Deployer
from edge_agent.agent.dividing import Dividing
from edge_agent.agent.hosting import Hosting
from edge_agent.agent.own_profile import OwnProfile
from edge_agent.agent.peer_answers import PeerAnswers
from edge_agent.agent.peering import Peering
from edge_agent.agent.plaintext import SETTING
from edge_agent.agent.planners import Planners
from edge_agent.agent.preparing import Preparing
from edge_agent.agent.probing import Prober
from edge_agent.agent.stores import Stores
from edge_agent.agent.trials import Means
from edge_agent.agent.workers import Workers
from edge_agent.config import Settings, make_socket_folder
from edge_agent.errors import AgentUnavailable, AlreadyRunning, PeerLost, PeerRefused
from edge_agent.store.folder import make_folder
from edge_agent.store.lock import FolderLock
from edge_agent.telemetry.host import child_processes
from edge_agent.transport import local

log = logging.getLogger(__name__)

STOP_S = 4.0
"""How long what is in flight may take when the agent is told to stop; the rest ends within 1 s."""
SWITCH_S = 5e-4
"""Longest time a busy control thread keeps the interpreter from the data thread."""


def _claim(settings: Settings) -> list[FolderLock]:
    """The state folder and the socket's folder are ours, or another agent lives.

    Raises:
        AlreadyRunning: naming it.
        StorageError: the state folder cannot be made.
    """
    # Before the socket's folder, which lies in it by default and would be blamed.
    make_folder(settings.state)
    make_socket_folder(settings.socket.parent)
    locks = []
    try:
        for folder in dict.fromkeys((settings.socket.parent, settings.state)):
            lock = FolderLock(folder)
            lock.acquire()
            locks.append(lock)
    except AlreadyRunning:
        for lock in locks:
            lock.release()
        raise
    return locks


def _nothing_answers_at(path: Path) -> None:
    try:
        local.connect(path).close()
    except AgentUnavailable:
        return
    raise AlreadyRunning(f"an agent already answers at {path}: stop it, or choose another --socket")


def serve(settings: Settings, on_ready: Callable[[Peering], None], token: str | None) -> None:
    """Run the agent until SIGTERM or SIGINT; `on_ready` is called when the socket answers, and
    with a token, this device has joined the one that gave it out.

    Must run on the main thread.

    Raises:
        AlreadyRunning: another agent owns the socket or the state folder.
        StorageError: the state folder cannot be used.
        UsageError: it cannot listen where it is told to, or the token is none.
        PeerRefused, PeerLost: the other device cannot be joined.
    """
    told_fd = _told_to_stop_fd()
    locks = _claim(settings)
    try:
        _nothing_answers_at(settings.socket)
        _run(settings, on_ready, token, told_fd)
    finally:
        for lock in locks:
            lock.release()


def _told_to_stop_fd() -> int:
    """A descriptor that becomes readable with SIGTERM or SIGINT.

    Waiting for a lock that a handler releases may sleep on for ever: a handler in Python runs only
    when the main thread does, and the kernel may interrupt any thread, or that one just before it
    sleeps.
    """
    told_fd, signals_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(signals_fd, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return told_fd


def _run(
    settings: Settings, on_ready: Callable[[Peering], None], token: str | None, told_fd: int
) -> None:
    sys.setswitchinterval(SWITCH_S)
    stores = Stores(settings)
    stores.sweep()
    incarnation = stores.registry.next_incarnation()
    executor = ThreadPoolExecutor(32, thread_name_prefix="control")
    prober = Prober(settings)
    planners = Planners(settings)
    peering = Peering(settings, executor)
    _meet(peering, token)
    answers = Answers(
        settings, incarnation, prober.device, executor, planners, PeerAnswers(peering)
    )
    listener = local.listen(settings.socket)
    limits = settings.limits
    datapath = DataPath(
        listener,
        answers,
        max_requests=limits.max_requests_in_flight,
        max_bytes=limits.max_bytes_in_flight,
        max_request_bytes=limits.max_request_bytes,
    )
    workers = Workers(datapath)
    controller = Controller(settings, stores, incarnation, datapath, workers, executor, prober)
    company = Company(peering)
    preparing = Preparing(
        settings,
        stores,
        controller.building,
        datapath,
        device=lambda: prober.known,
        tidy=controller.collect_unused,
    )
    # The settings may allow less than before; what it was goes with what no model needs.
    stores.hosted.shrink()
    preparing.forget_parts()
    hosting = Hosting(
        company,
        preparing,
        limits.max_bytes_in_flight,
        workers,
        allows_plaintext=settings.peering.plaintext_streams,
    )
    if settings.peering.plaintext_streams:
        log.warning("tensors cross to other devices UNENCRYPTED if both say so: %s", SETTING)
    means = Means(
        settings=settings,
        stores=stores,
        datapath=datapath,
        workers=workers,
        moving=controller.moving,
        planners=planners,
        preparing=preparing,
        peers=company,
        host=controller,
    )
    deployer = Deployer(means)
    controller.connect(deployer)
    peering.connect(Dividing(hosting, deployer))
    answers.connect(controller, datapath, deployer)
    # Clients that connect early wait in the listener's queue until the models are back.
    datapath.start()
    controller.restore()
    datapath.accept_clients()
    controller.open_restored()
    peering.own.own_work = lambda: _work_for_peers(controller)
    own_profile = OwnProfile(settings, datapath, controller, peering.own.learn)
    peering.when_there_is_company(own_profile.begin)
    on_ready(peering)
    select.select([told_fd], [], [])
    log.info("stopping: answering what is in flight")
    hosting.stop()
    peering.stop()
    own_profile.stop()
    controller.stop()
    planners.close()
    datapath.stop(STOP_S)
    workers.close()
    settings.socket.unlink(missing_ok=True)
    executor.shutdown(wait=False, cancel_futures=True)


def _work_for_peers(controller: Controller) -> set[int]:
    """Processes of this agent whose use of the processor leaves no less for a peer's plan: all that
    give way, and those that compute for peers. Models of this device's own take from it."""
    workers = [loaded.worker for loaded in controller.all_loaded()]
    own_models = {worker.child.pid for worker in workers if worker is not None}
    return {os.getpid(), *child_processes()} - own_models


def _meet(peering: Peering, token: str | None) -> None:
    """Connect to the peers, and join one more. If that fails, nothing of it goes on."""
    try:
        peering.start()
        if token is not None:
            _join(peering, token)
    except BaseException:
        peering.stop()
        raise


def _join(peering: Peering, token: str) -> None:
    try:
        peer, _ = peering.join(token)
    except (PeerLost, PeerRefused) as error:
        # As the service that joined with it once, and starts again with the same command.
        if peering.is_peer_of(token):
            log.warning("%s; it is a peer already, and this agent goes on without it", error)
            return
        raise
    log.info('joined "%s" (%s)', peer.name, peer.id)
