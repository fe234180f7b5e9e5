"""Messages between agents about divided epochs, one of every kind."""

from __future__ import annotations

from edge_agent.devices import DeviceId, Layout
from edge_agent.plans import Epoch, Target
from edge_agent.profiles import HOST_UNIT, Configuration, SegmentTimes
from edge_agent.stages import OWNER, Blob, Crossing
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import TensorName
from edge_agent.wire.deploying import (
    Deploying,
    DialTo,
    DropEpoch,
    EpochFailed,
    EpochLinked,
    EpochOpened,
    EpochUnlinked,
    HostedStage,
    ListenFor,
    ListeningFor,
    OfferStages,
    OpenStages,
    PrepareStage,
    StagePrepared,
    StageProgress,
)
from edge_agent.wire.hosting import Neighbour

KEY = "b" * 51 + "a"
DEVICE = DeviceId("d" * 20)
EPOCH = Epoch(owner="o" * 20, incarnation=3, model=ModelId("5" * 64), number=7)
BLOB = Blob(sha256="f" * 64, size_bytes=1234)
TIMES = SegmentTimes(
    configuration=Configuration(unit=HOST_UNIT, layout=Layout.BLOCKED, threads=2),
    segment_s=(0.25, 0.5),
    overhead_s=1e-4,
    border_s_per_byte=1e-10,
    error_fraction=0.1,
)
CROSSINGS = (
    Crossing(source=OWNER, target=0, tensors=(TensorName("x"),)),
    Crossing(source=0, target=OWNER, tensors=(TensorName("y"),)),
)
FROM_OWNER: list[Deploying] = [
    PrepareStage(
        epoch=EPOCH,
        stage=0,
        model=BLOB,
        target=Target.THROUGHPUT,
        threads=None,
        half_bound=0.01,
        is_fresh=True,
        sources=(DEVICE,),
    ),
    OfferStages(epoch=EPOCH, device=DEVICE, stages=("e" * 64,)),
    OpenStages(
        epoch=EPOCH,
        crossings=CROSSINGS,
        stages=(
            HostedStage(
                number=0, model="e" * 64, target=Target.LATENCY, threads=4, half_bound=None
            ),
        ),
        neighbours=(Neighbour(device=DEVICE, stages=(OWNER,), window_bytes=1 << 20),),
        is_encrypted=True,
    ),
    ListenFor(epoch=EPOCH, device=DEVICE, key=KEY),
    DialTo(epoch=EPOCH, device=DEVICE, key=KEY, port=65535, addresses=("10.0.0.1", "fe80::1")),
    DropEpoch(epoch=EPOCH),
]
FROM_HOST: list[Deploying] = [
    StageProgress(epoch=EPOCH, stage=1, fraction=0.5, what="compiling"),
    StagePrepared(
        epoch=EPOCH,
        stage=1,
        device_key="an i9 with 1.32",
        times=(TIMES,),
        plan="[0-1] cpu/blocked/2t",
        measured_s=0.75,
        received_bytes=97 << 20,
    ),
    EpochOpened(epoch=EPOCH, key=KEY),
    ListeningFor(epoch=EPOCH, device=DEVICE, port=1),
    EpochLinked(epoch=EPOCH),
    EpochFailed(epoch=EPOCH, code="busy", message="later"),
    EpochUnlinked(epoch=EPOCH, device=DEVICE, why="it is gone"),
]
