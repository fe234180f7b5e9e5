"""What a device keeps of the stages that it hosts, and what goes when there is no room for more."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge_agent.agent import preparing
from edge_agent.agent.preparing import Preparing
from edge_agent.agent.stores import Stores
from edge_agent.agent.turns import Traffic, Turn
from edge_agent.config import Settings
from edge_agent.devices import DeviceId
from edge_agent.plans import Target
from edge_agent.stages import Blob, StageModel
from edge_agent.store.hosted import HostedKey, HostedStore
from edge_agent.store.partial import Partial, PartialStore
from tests.store.made_stage import stage

OWNER = DeviceId("owner")


class World:
    """A folder with real stores of stages; nothing is received or compiled."""

    def __init__(self, root: Path, max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: Counter[str] = Counter()
        self.hosted = HostedStore(root, max_bytes)
        self.partial = PartialStore(root)
        builder = SimpleNamespace(
            admit_stage=lambda _stage: None, build=lambda *_: None, close=lambda: None
        )
        monkeypatch.setattr(preparing, "Builder", lambda *_, **__: builder)
        monkeypatch.setattr(preparing, "missing", lambda *_: ())
        pool = SimpleNamespace(sweep=tuple)
        self.preparing = Preparing(
            cast(Settings, SimpleNamespace(state=root)),
            cast(Stores, SimpleNamespace(hosted=self.hosted, pool=pool)),
            Turn(),
            cast(Traffic, SimpleNamespace(quiet_for_s=lambda: 10.0)),
            device=lambda: None,
            tidy=lambda: self.done.update(["tidied"]),
        )

    def prepare(self, of: StageModel) -> None:
        """Have it hosted for the owner."""

        def fetch(*_: Any) -> None:
            raise AssertionError("nothing is missing")

        key = HostedKey(stage=of, owner=OWNER, target=Target.LATENCY, threads=None)
        self.preparing.prepare(key, fetch, lambda *_: None, lambda: False, is_fresh=False)

    def receive_some(self, of: StageModel) -> Path:
        """Some bytes of its first tensor."""
        blob = of.tensors[0]
        with self.partial.open(blob.sha256, blob.size_bytes) as partial:
            partial.write(0, b"some")
            return partial.path


def test_what_gives_way_to_another_stage_is_gone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, 4_000, monkeypatch)
    old, new = (stage(name, tensors=[name]) for name in "ab")
    world.prepare(old)
    left = world.receive_some(old)
    assert world.done["tidied"] == 0
    world.prepare(new)
    assert [hosted.key.stage.id for hosted in world.hosted.all()] == [new.id]
    assert world.done["tidied"] == 1
    assert not left.exists()


def test_what_is_hosted_may_be_received_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, 1 << 30, monkeypatch)
    one, other = (stage(name, tensors=[name]) for name in "ab")
    world.prepare(one)
    left, gone = world.receive_some(one), world.receive_some(other)
    world.preparing.forget_parts()
    assert left.exists()
    assert not gone.exists()


def test_what_is_read_is_whole_whoever_tidies_meanwhile_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, 1 << 30, monkeypatch)
    content = b"a description" * 1000
    blob = Blob(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    stopped = threading.Event()

    def tidy() -> None:
        while not stopped.is_set():
            world.preparing.forget_parts()

    def fetch(partial: Partial, on_received: Callable[[int], None]) -> None:
        partial.write(0, content)
        on_received(len(content))

    tidying = threading.Thread(target=tidy)
    tidying.start()
    try:
        for _ in range(200):
            assert world.preparing.read(blob, fetch, lambda: False) == content
    finally:
        stopped.set()
        tidying.join()
    assert world.partial.received_bytes(blob.sha256) == 0
    assert list((tmp_path / "partial").iterdir()) == []
