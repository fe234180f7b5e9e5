from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from edge_agent.agent.builders import Builder
from edge_agent.agent.offers import content_of
from edge_agent.agent.processes import NICENESS, Child
from edge_agent.agent.stores import Stores
from edge_agent.config import Budgets, Settings
from edge_agent.devices import DeviceId
from edge_agent.errors import BuilderLost, EdgeAgentError, ModelRefused
from edge_agent.plans import Target
from edge_agent.store.hosted import Hosted, HostedKey
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.transport import local
from edge_agent.wire.cutting import CutStages, StageAdmitted
from edge_agent.wire.messages import Build
from tests.builder.made_hosts import DEVICE, Here, write_wide


def children() -> set[int]:
    own = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in own for pid in file.read_text().split()}


def test_a_builder_that_admitted_at_normal_priority_gives_way_when_it_builds(
    tmp_path: Path,
) -> None:
    before, own = children(), os.getpriority(os.PRIO_PROCESS, 0)
    builder = Builder(
        Settings(socket=tmp_path / "s", state=tmp_path / "state", cache=tmp_path / "cache")
    )
    message = Build(
        model=ModelId("0" * 64), target=Target.LATENCY, threads=None, shapes=(), is_fresh=False
    )
    try:
        (pid,) = children() - before
        assert os.getpriority(os.PRIO_PROCESS, pid) == own
        with pytest.raises(EdgeAgentError):  # there is no such model
            builder.build(message, lambda _fraction, _what: None, lambda: None)
        assert os.getpriority(os.PRIO_PROCESS, pid) == max(own, NICENESS)
    finally:
        builder.close()


def test_a_builder_that_hangs_is_given_up(tmp_path: Path) -> None:
    before = children()
    settings = Settings(socket=tmp_path / "s", state=tmp_path / "state", cache=tmp_path / "cache")
    builder = Builder(settings, silence_s=0.2)
    message = Build(
        model=ModelId("0" * 64), target=Target.LATENCY, threads=None, shapes=(), is_fresh=False
    )
    try:
        (pid,) = children() - before
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(BuilderLost, match="it did nothing for 0 s"):
            builder.build(message, lambda _fraction, _what: None, lambda: None)
        assert pid not in children()
    finally:
        builder.close()


SCRIPT = """
import os, socket, sys, time
from edge_agent.devices import UnitId
from edge_agent.transport import local
from edge_agent.wire.messages import Codec, Failure, Progress, Trying, decode

stream, codec = local.FrameStream(socket.socket(fileno=int(sys.argv[1]))), Codec()
build = decode(codec.to_builder, stream.receive()[0])
banned = sorted((b.unit, b.is_keeping, b.reason) for b in build.banned)
steps = {steps!r}
if len(banned) < len(steps):
    unit, is_keeping, end = steps[len(banned)]
    if unit:
        stream.send(codec.encode(Trying((UnitId(unit),), is_keeping)))
    if end == "hangs":
        time.sleep(60)
    if end == "later":
        stream.send(codec.encode(Trying(())))
    os.abort()
stream.send(codec.encode(Trying(())))
stream.send(codec.encode(Failure(None, "error", repr(banned))))
"""


class Scripted(Builder):
    """A builder whose processes try one unit after the other, and end or hang there."""

    steps: tuple[tuple[str, bool, str], ...] = ()
    pids: list[int]

    def _new_child(self) -> Child:
        source = SCRIPT.replace("{steps!r}", repr(self.steps))
        child = ScriptedChild(source)
        self.pids = [*getattr(self, "pids", []), child.pid]
        return child


class ScriptedChild(Child):
    def __init__(self, source: str) -> None:
        self.stream, theirs = local.pair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", source, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stderr=subprocess.DEVNULL,
            )
        self._is_lowered = False


def scripted(tmp_path: Path, *steps: tuple[str, bool, str]) -> Scripted:
    settings = Settings(
        socket=tmp_path / "s",
        state=tmp_path / "state",
        cache=tmp_path / "cache",
        planning=Budgets(unit_s=2.0),
    )
    kind = type("Steps", (Scripted,), {"steps": steps})
    made: Scripted = kind(settings)
    return made


def built(builder: Builder) -> str:
    """What the last process was told not to try."""
    message = Build(
        model=ModelId("0" * 64), target=Target.LATENCY, threads=None, shapes=(), is_fresh=False
    )
    try:
        with pytest.raises(EdgeAgentError) as raised:
            builder.build(message, lambda _fraction, _what: None, lambda: None)
    finally:
        builder.close()
    return str(raised.value)


@pytest.mark.long
def test_units_whose_providers_end_or_block_the_builder_are_left_out_one_by_one(
    tmp_path: Path,
) -> None:
    builder = scripted(tmp_path, ("gpu", False, "ends"), ("npu", False, "hangs"))
    assert built(builder) == str(
        [
            ("gpu", False, "its provider ended the builder: signal 6"),
            ("npu", False, "its provider ended the builder: it did nothing for 2 s"),
        ]
    )
    assert len(builder.pids) == 3
    assert not children() & set(builder.pids)


def test_a_unit_that_dies_of_what_is_to_be_kept_is_only_not_kept(tmp_path: Path) -> None:
    builder = scripted(tmp_path, ("npu", True, "ends"), ("npu", False, "ends"))
    assert built(builder) == str(
        [
            ("npu", False, "its provider ended the builder: signal 6"),
            ("npu", True, "its provider ended the builder: signal 6"),
        ]
    )


def test_a_builder_that_dies_while_no_unit_is_tried_is_lost(tmp_path: Path) -> None:
    builder = scripted(tmp_path, ("", False, "ends"))
    message = Build(
        model=ModelId("0" * 64), target=Target.LATENCY, threads=None, shapes=(), is_fresh=False
    )
    with pytest.raises(BuilderLost, match="signal 6"):
        builder.build(message, lambda _fraction, _what: None, lambda: None)
    builder.close()
    assert len(builder.pids) == 1


def test_a_builder_that_is_killed_while_a_unit_is_tried_is_not_replaced(tmp_path: Path) -> None:
    builder = scripted(tmp_path, ("npu", False, "hangs"))
    message = Build(
        model=ModelId("0" * 64), target=Target.LATENCY, threads=None, shapes=(), is_fresh=False
    )
    killing = threading.Timer(0.5, builder.kill)
    killing.start()
    with pytest.raises(BuilderLost, match="stopped"):
        builder.build(message, lambda _fraction, _what: None, lambda: None)
    killing.join()
    builder.close()
    assert len(builder.pids) == 1


def test_a_builder_that_dies_after_units_were_tried_is_repeated_and_then_does_without_them(
    tmp_path: Path,
) -> None:
    """As one does whose memory a provider damaged before."""
    builder = scripted(tmp_path, ("npu", False, "later"))
    assert built(builder) == str([("npu", False, "its provider ended the builder: signal 6")])
    assert len(builder.pids) == 3
    assert not children() & set(builder.pids)


def test_stages_are_cut_by_one_builder_and_admitted_and_built_by_another(tmp_path: Path) -> None:
    owner, host = Here(tmp_path / "owner"), Here(tmp_path / "host")
    model = owner.load(write_wide(tmp_path / "m.onnx"))
    asked = CutStages(
        model=model,
        shapes=(),
        ranges=(SegmentRange(start=1, stop=3),),
        starts=(0, 2, 4, 6),
    )
    grants: list[None] = []
    builder = Builder(owner.settings)
    try:
        (stage,) = builder.cut_stages(asked, lambda: grants.append(None))
        assert grants
        assert builder.cut_stages(asked) == (stage,)
        with pytest.raises(ModelRefused, match="want a range within its 1 segments"):
            builder.cut_stages(msgspec.structs.replace(asked, starts=(0,)))
    finally:
        builder.close()
    host.receive(stage, owner)
    builder = Builder(host.settings)
    try:
        assert builder.admit_stage(stage) == StageAdmitted(stage.id, is_new=True)
        assert builder.admit_stage(stage) == StageAdmitted(stage.id, is_new=False)
        with pytest.raises(ModelRefused, match="got 4 nodes, want 5"):
            builder.admit_stage(dataclasses.replace(stage, nodes=5))
        message = Build(
            model=stage.id,
            target=Target.LATENCY,
            threads=None,
            shapes=stage.shapes,
            is_fresh=False,
            device=DEVICE,
            stage=stage,
        )
        built = builder.build(message, lambda _fraction, _what: None, lambda: None)
        assert [len(times.segment_s) for times in built.times] == [2] * len(built.times)
        assert built.subgraphs
    finally:
        builder.close()
    kept = HostedKey(stage=stage, owner=DeviceId("o"), target=Target.LATENCY, threads=None)
    stores = Stores(host.settings)
    stores.hosted.save(Hosted(key=kept, built=built))
    stores.collect([])
    # Opened again, it needs no builder.
    assert stores.hosted.find(kept) == Hosted(key=kept, built=built)
    for lease in stores.hold(built.subgraphs):
        lease.release()
    offered = content_of(stage, stores.pool)
    assert {sha: found.size_bytes for sha, found in offered.items()} == {
        blob.sha256: blob.size_bytes for blob in stage.blobs
    }
    stores.hosted.remove(kept)
    stores.collect([])
    assert stores.pool.models() == ()
