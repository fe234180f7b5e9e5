"""What a host takes into its pool of what another device says is a stage, and what it refuses."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.builder.given import GivenSample, encode_sample
from edge_agent.errors import EdgeAgentError, ModelRefused, ProtocolError, StorageError
from edge_agent.stages import Blob, StageModel
from edge_agent.store.stage_content import missing, places
from edge_agent.subgraphs import SegmentRange
from edge_agent.tensors import ElementType, TensorName, TensorSpec
from tests.builder.made_hosts import Here, write_wide

STARTS = (0, 2, 4, 6)


@pytest.fixture
def owner(tmp_path: Path) -> Here:
    return Here(tmp_path / "owner")


@pytest.fixture
def host(tmp_path: Path) -> Here:
    return Here(tmp_path / "host")


@pytest.fixture
def stages(owner: Here, tmp_path: Path) -> tuple[StageModel, ...]:
    model = owner.load(write_wide(tmp_path / "m.onnx"))
    return owner.cut(model, [(0, 2), (1, 4)], STARTS)


def blobs_of(here: Here) -> set[str]:
    return {path.name for path in (here.pool.folder / "blobs").iterdir()}


def received(here: Here) -> set[str]:
    return {path.name for path in (here.settings.state / "partial").iterdir()}


def test_a_stage_is_moved_into_the_pool_exactly_as_it_was(
    owner: Here, host: Here, stages: tuple[StageModel, ...]
) -> None:
    stage = stages[0]
    assert set(missing(stage, host.pool)) == set(stage.blobs)
    assert host.receive(stage, owner) == sum(blob.size_bytes for blob in stage.blobs)
    inodes = {path.stat().st_ino for path in (host.settings.state / "partial").iterdir()}
    assert host.admit(stage).is_new
    assert received(host) == set()
    assert missing(stage, host.pool) == ()
    theirs, ours = places(stage, owner.pool), places(stage, host.pool)
    for blob in stage.blobs:
        content = ours[blob.sha256].read_bytes()
        assert content == theirs[blob.sha256].read_bytes()
        assert hashlib.sha256(content).hexdigest() == blob.sha256
        assert ours[blob.sha256].stat().st_mode & 0o077 == 0
        # Moved, not copied; but for the graph, which lies under another name.
        assert blob == stage.graph or ours[blob.sha256].stat().st_ino in inodes
    with host.pool.get(stage.id, thorough=True) as entry:  # type: ignore[union-attr]
        assert entry.graph == ours[stage.graph.sha256]


def test_a_sample_of_many_megabytes_is_read_as_it_came(
    owner: Here, host: Here, tmp_path: Path
) -> None:
    model = owner.load(write_wide(tmp_path / "m.onnx", 2, batch="n"))
    shapes = ((TensorName("v0"), (1200, 16, 8, 8)),)
    (stage,) = owner.cut(model, [(1, 2)], (0, 2), shapes)
    assert stage.samples[0].size_bytes > 4 << 20
    host.receive(stage, owner)
    assert host.admit(stage).is_new


def test_a_stage_that_is_here_is_not_taken_again(
    owner: Here, host: Here, stages: tuple[StageModel, ...]
) -> None:
    stage = stages[0]
    host.receive(stage, owner)
    host.admit(stage)
    before = host.files()
    assert not host.admit(stage).is_new
    after = host.files()
    assert {n for n in before if after.get(n) != before[n]} <= {f"pool/{stage.id}.json"}
    assert after.keys() == before.keys()


def test_stages_share_what_they_have_in_common(
    owner: Here, host: Here, stages: tuple[StageModel, ...]
) -> None:
    first, second = stages
    common = set(first.tensors) & set(second.tensors)
    assert common
    host.receive(first, owner)
    host.admit(first)
    assert common.isdisjoint(missing(second, host.pool))
    host.receive(second, owner)
    host.admit(second)
    assert missing(first, host.pool) == missing(second, host.pool) == ()
    assert blobs_of(host) == {blob.sha256 for s in stages for blob in (*s.tensors, *s.samples)}


def test_a_stage_with_other_samples_takes_the_place_of_the_one_before(
    owner: Here, host: Here, stages: tuple[StageModel, ...]
) -> None:
    first = stages[0]
    host.receive(first, owner)
    host.admit(first)
    other = replace(first, samples=first.samples[:1])
    assert missing(other, host.pool) == ()
    assert host.admit(other).is_new
    host.pool.collect({first.id})
    assert set(missing(first, host.pool)) == {first.graph, *first.samples[1:]}
    host.receive(first, owner)
    assert host.admit(first).is_new


def test_what_was_not_received_is_asked_for_again(
    owner: Here, host: Here, stages: tuple[StageModel, ...]
) -> None:
    stage = stages[0]
    host.receive(stage, owner)
    (host.settings.state / "partial" / f"{stage.tensors[0].sha256}.part").unlink()
    with pytest.raises(StorageError, match=r"got 0 bytes of tensor .* ask again what is missing"):
        host.admit(stage)
    assert host.pool.models() == ()
    # What came is kept for the next try.
    assert len(received(host)) == len(stage.blobs) - 1
    host.receive(stage, owner)
    assert host.admit(stage).is_new


@pytest.mark.parametrize("what", ["graph", "tensor", "sample"])
def test_an_entry_that_is_damaged_is_received_again(
    owner: Here, host: Here, stages: tuple[StageModel, ...], what: str
) -> None:
    stage = stages[0]
    host.receive(stage, owner)
    host.admit(stage)
    blob = {"graph": stage.graph, "tensor": stage.tensors[0], "sample": stage.samples[0]}[what]
    path = places(stage, host.pool)[blob.sha256]
    path.write_bytes(b"x" + path.read_bytes()[1:])
    host.receive(stage, owner)
    if what == "graph":  # that it is another one shows when it is read
        with pytest.raises(StorageError, match="ask again what is missing"):
            host.admit(stage)
        host.receive(stage, owner)
    assert host.admit(stage).is_new
    assert missing(stage, host.pool) == ()
    host.pool.get(stage.id, thorough=True).release()  # type: ignore[union-attr]


# ---- what a hostile device may send


class Forged:
    """A stage whose content is made up: what the host receives is what it lists."""

    def __init__(self, stage: StageModel, owner: Here) -> None:
        where = places(stage, owner.pool)
        self.stage = stage
        self.contents = {
            blob.sha256: where[blob.sha256].read_bytes()[: blob.size_bytes] for blob in stage.blobs
        }
        self.proto = onnx.load_model_from_string(self.contents[stage.graph.sha256])

    def kept(self, content: bytes) -> Blob:
        blob = Blob(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        self.contents[blob.sha256] = content
        return blob

    def change(self, **changes: Any) -> None:
        self.stage = replace(self.stage, **changes)

    def change_graph(self) -> None:
        """After `proto` was changed."""
        self.change(graph=self.kept(self.proto.SerializeToString()))

    def sample(self, **arrays: Any) -> None:
        content = encode_sample(GivenSample(name="s", arrays=arrays))
        self.change(samples=(self.kept(content),))

    def admit(self, host: Here) -> None:
        for blob in {blob.sha256: blob for blob in self.stage.blobs}.values():
            if blob.sha256 in self.contents and len(self.contents[blob.sha256]) == blob.size_bytes:
                with host.partials.open(blob.sha256, blob.size_bytes) as partial:
                    partial.write(0, self.contents[blob.sha256])
        host.admit(self.stage)


def tensor_at(forged: Forged, **entries: str) -> None:
    tensor = next(t for t in forged.proto.graph.initializer if t.external_data)
    for entry in tensor.external_data:
        entry.value = entries.pop(entry.key, entry.value)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    forged.change_graph()


def other_location(location: str) -> Callable[[Forged], None]:
    return lambda forged: tensor_at(forged, location=location)


def other_domain(forged: Forged) -> None:
    forged.proto.graph.node[0].domain = "com.evil"
    forged.proto.opset_import.append(helper.make_opsetid("com.evil", 1))
    forged.change_graph()


def more_tensors(forged: Forged) -> None:
    more = forged.kept(bytes(5000))
    forged.change(tensors=(*forged.stage.tensors, more))


def fewer_tensors(forged: Forged) -> None:
    forged.change(tensors=forged.stage.tensors[1:])


def lying_tensor_size(forged: Forged) -> None:
    first, *rest = forged.stage.tensors
    content = forged.contents[first.sha256] + b"x"
    forged.contents[first.sha256] = content
    forged.change(tensors=(replace(first, size_bytes=len(content)), *rest))


def other_content(forged: Forged) -> None:
    first = forged.stage.tensors[0]
    forged.contents[first.sha256] = bytes(first.size_bytes)


def other_graph(forged: Forged) -> None:
    graph = forged.stage.graph
    forged.contents[graph.sha256] = bytes(graph.size_bytes)


def no_model(forged: Forged) -> None:
    forged.change(graph=forged.kept(random.Random(0).randbytes(5000)))


def another_path(forged: Forged) -> None:
    first, *rest = forged.stage.tensors
    forged.change(tensors=(replace(first, sha256="../" * 20 + "etc/x"), *rest))


def graph_as_path(forged: Forged) -> None:
    forged.change(graph=replace(forged.stage.graph, sha256="../../" + "0" * 58))


def twice(forged: Forged) -> None:
    forged.change(tensors=(*forged.stage.tensors, forged.stage.tensors[0]))


def negative_size(forged: Forged) -> None:
    first, *rest = forged.stage.tensors
    forged.change(tensors=(replace(first, size_bytes=-1), *rest))


def huge_tensor(forged: Forged) -> None:
    first, *rest = forged.stage.tensors
    forged.change(tensors=(replace(first, size_bytes=1 << 50), *rest))


def huge_graph(forged: Forged) -> None:
    forged.change(graph=replace(forged.stage.graph, size_bytes=1 << 40))


def huge_sample(forged: Forged) -> None:
    forged.change(samples=(replace(forged.stage.samples[0], size_bytes=1 << 40),))


def more_nodes(forged: Forged) -> None:
    forged.change(nodes=forged.stage.nodes + 1)


def many_segments(forged: Forged) -> None:
    count = 5000
    forged.change(
        segments=SegmentRange(start=0, stop=count), starts=tuple(range(count)), nodes=count
    )


def other_input(forged: Forged) -> None:
    spec = forged.stage.inputs[0]
    forged.change(inputs=(replace(spec, element_type=ElementType.FLOAT64),))


def more_outputs(forged: Forged) -> None:
    more = TensorSpec(name=TensorName("more"), element_type=ElementType.FLOAT32, dims=(1,))
    forged.change(outputs=(*forged.stage.outputs, more))


def sequence_output(forged: Forged) -> None:
    made = helper.make_tensor_sequence_value_info("y2", TensorProto.FLOAT, None)
    forged.proto.graph.node.append(
        helper.make_node("SequenceConstruct", [forged.proto.graph.output[0].name], ["y2"])
    )
    forged.proto.graph.output.append(made)
    forged.change_graph()


def sample_of_another_type(forged: Forged) -> None:
    forged.sample(v0=np.zeros((1, 16, 8, 8), np.float64))


def sample_of_another_shape(forged: Forged) -> None:
    forged.sample(v0=np.zeros((1, 16, 8, 9), np.float32))


def sample_of_something_else(forged: Forged) -> None:
    forged.sample(v0=np.zeros((1, 16, 8, 8), np.float32), w0=np.zeros(3, np.float32))


def sample_without_values(forged: Forged) -> None:
    forged.sample()


def sample_of_lists(forged: Forged) -> None:
    forged.sample(v0=[np.zeros(3, np.float32)])


def random_sample(forged: Forged) -> None:
    forged.change(samples=(forged.kept(random.Random(0).randbytes(5000)),))


def no_samples(forged: Forged) -> None:
    forged.change(samples=())


def other_shapes(forged: Forged) -> None:
    forged.change(shapes=((TensorName("v0"), (2, 16, 8, 8)),))


HOSTILE: list[tuple[Callable[[Forged], None], str]] = [
    (other_location("../" + "0" * 64), "external data location"),
    (other_location("/etc/passwd"), "external data location"),
    (other_location("blobs/" + "0" * 64), "want only the 2 tensors that are listed"),
    (other_location("secret"), "want only the 2 tensors that are listed"),
    (lambda forged: tensor_at(forged, offset="4096"), "at byte 4096 of"),
    (lambda forged: tensor_at(forged, length="4096"), "got external data of 4096 bytes"),
    (lambda forged: tensor_at(forged, prepacked_0="x"), "external data key"),
    (other_domain, 'operator domain "com.evil" is unknown'),
    (more_tensors, "lists 1 tensors that it does not refer to"),
    (fewer_tensors, "want only the 1 tensors that are listed"),
    (lying_tensor_size, "want only the 2 tensors that are listed"),
    (other_content, "got bytes with the SHA-256"),
    (other_graph, "got bytes with the SHA-256"),
    (no_model, "is no ONNX model"),
    (another_path, "want a SHA-256 in hexadecimal"),
    (graph_as_path, "want a SHA-256 in hexadecimal"),
    (twice, "more than once"),
    (negative_size, "a size above 0"),
    (huge_tensor, "bytes of tensors, want at most"),
    (huge_graph, "bytes of graph, want at most"),
    (huge_sample, "bytes of a sample, want at most"),
    (more_nodes, "got 4 nodes, want 5"),
    (many_segments, "got 5000 segments, want at most 4096"),
    (other_input, r'got inputs "v0" float32\[1,16,8,8\], want "v0" float64\[1,16,8,8\]'),
    (more_outputs, "got outputs"),
    (sequence_output, r'output "y2" is a seq\(tensor\(float\)\), want a tensor'),
    (sample_of_another_type, r"got float64\[1,16,8,8\], want float32\[1,16,8,8\]"),
    (sample_of_another_shape, r"got float32\[1,16,8,9\], want float32\[1,16,8,8\]"),
    (sample_of_something_else, 'got a value for "w0"'),
    (sample_without_values, 'input "v0" is missing'),
    (sample_of_lists, "got a list"),
    (random_sample, "sample 0"),
    (no_samples, "got 0 samples, want 1 to 2"),
    (other_shapes, "got shapes"),
]


@pytest.mark.parametrize(("forge", "said"), HOSTILE)
def test_what_is_not_as_it_should_be_is_refused_and_leaves_nothing(
    owner: Here,
    host: Here,
    stages: tuple[StageModel, ...],
    forge: Callable[[Forged], None],
    said: str,
) -> None:
    forged = Forged(stages[0], owner)
    forge(forged)
    with pytest.raises((ModelRefused, ProtocolError), match=said):
        forged.admit(host)
    assert host.pool.models() == ()
    assert blobs_of(host) == set()
    assert not list(host.pool.folder.glob("*.onnx"))
    assert not list(host.settings.state.parent.glob("etc*"))


@pytest.mark.parametrize("forge", [more_nodes, other_input, other_shapes, random_sample])
def test_a_lie_about_a_stage_that_is_here_is_found_and_harms_nothing(
    owner: Here,
    host: Here,
    stages: tuple[StageModel, ...],
    forge: Callable[[Forged], None],
) -> None:
    stage = stages[0]
    host.receive(stage, owner)
    host.admit(stage)
    forged = Forged(stage, owner)
    forge(forged)
    with pytest.raises(ModelRefused):
        forged.admit(host)
    assert not host.admit(stage).is_new
    assert missing(stage, host.pool) == ()


@pytest.mark.parametrize("seed", range(40))
def test_a_graph_with_flipped_bits_is_admitted_or_refused_and_nothing_else(
    owner: Here, host: Here, stages: tuple[StageModel, ...], seed: int
) -> None:
    forged, chance = Forged(stages[0], owner), random.Random(seed)
    content = bytearray(forged.contents[stages[0].graph.sha256])
    for _ in range(chance.randrange(1, 6)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    forged.change(graph=forged.kept(bytes(content)))
    try:
        forged.admit(host)
    except EdgeAgentError:
        assert host.pool.models() == ()


# ---- processes that die

ADMIT = """
import sys
from pathlib import Path
import msgspec
from edge_agent.stages import StageModel
from tests.builder.made_hosts import Here
host = Here(Path(sys.argv[1]))
stage = msgspec.json.decode(sys.stdin.read(), type=StageModel)
print("ready", flush=True)
host.admit(stage)
"""


@pytest.mark.parametrize("left", [1, 30, 59])
def test_an_admission_that_is_killed_can_be_repeated(
    owner: Here, host: Here, tmp_path: Path, left: int
) -> None:
    count = 60
    model = owner.load(write_wide(tmp_path / "m.onnx", count))
    (stage,) = owner.cut(model, [(0, count)], tuple(range(0, 2 * count, 2)))
    host.receive(stage, owner)
    with subprocess.Popen(
        [sys.executable, "-c", ADMIT, str(host.settings.state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(msgspec.json.encode(stage).decode())
        child.stdin.close()
        assert child.stdout.readline() == "ready\n"
        while len(received(host)) > left and child.poll() is None:
            pass
        child.send_signal(signal.SIGKILL)
    host.pool.sweep()
    # Nothing that was moved before has to come again.
    moved = {blob for blob in stage.blobs if f"{blob.sha256}.part" not in received(host)}
    assert moved
    assert moved.isdisjoint({*missing(stage, host.pool)} - {stage.graph})
    host.receive(stage, owner)
    host.admit(stage)
    assert received(host) == set()
    assert missing(stage, host.pool) == ()
    host.pool.get(stage.id, thorough=True).release()  # type: ignore[union-attr]
    host.pool.collect(set())
    assert blobs_of(host) == set()
