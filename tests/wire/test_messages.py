"""Messages: every one survives the way, and nothing else is understood."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.devices import (
    ComputeUnit,
    Device,
    Keeping,
    Layout,
    ProviderUse,
    RefusedUnit,
    UnitId,
    UnitKind,
)
from edge_agent.errors import BadRequest, ProtocolError, RunFailed
from edge_agent.plans import AllowedWire, Bound, Epoch, ExecutionPlan, Pin, Target
from edge_agent.problems import SegmentPin
from edge_agent.profiles import Placement, RefusedNode
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import ElementType, TensorName, TensorSpec, WireType
from edge_agent.wire.messages import (
    MAX_DEADLINE_S,
    Admit,
    AskDistributions,
    AskModels,
    Build,
    Built,
    Codec,
    Deployment,
    Done,
    Failure,
    Grant,
    Infer,
    Load,
    Message,
    Probed,
    Progress,
    Ran,
    Ready,
    Run,
    RunError,
    Trying,
    Unload,
    decode,
    error_text,
)
from edge_agent.wire.parts import (
    MAX_PINS,
    Banned,
    General,
    SubgraphFile,
    TensorHead,
)
from edge_agent.wire.planning import FROM_PLANNER, TO_PLANNER, PlanLoaded, PlanProblem
from tests.planner.made_problems import problem
from tests.planner.made_surroundings import PI, around, peer
from tests.planning.made_profiles import board

EPOCH = Epoch(owner="local", incarnation=1, model=ModelId("m"), number=2)
HEAD = TensorHead("x", ElementType.FLOAT32, (1, 3))
SPEC = TensorSpec(name=TensorName("x"), element_type=ElementType.FLOAT32, dims=(1, "N", None))
GPU, NPU = UnitId("gpu0"), UnitId("npu0")
PINS = (Pin(pattern="/layer[12]/*", unit=GPU), Pin(pattern="é?", unit=NPU))
FILE = SubgraphFile(
    path="/c",
    level="none",
    threads=1,
    is_plain=False,
    compiled_for="this device",
    unit=GPU,
    use=ProviderUse(
        provider="P", options=(("a", "1"), ("b", "")), library="/p.so", memory="memory of P"
    ),
    falls_back=True,
    resource="gpu0",
    at_once=2,
)
DEVICE = Device(
    hostname="here",
    processor="p",
    cores=(0, 3),
    memory_bytes=1 << 40,
    runtime_version="1.32.0",
    runtime_build="onnxruntime",
    units=(
        ComputeUnit(
            id=GPU,
            kind=UnitKind.GPU,
            provider="P",
            provider_version="2",
            layouts=(Layout.NCHW, Layout.NHWC),
            cores=0,
            options=(("a", "1"),),
            layout_options=((), (("layout", "NHWC"),)),
            threads_option="threads",
            library="/p.so",
            memory="memory of P",
            memory_bytes=1 << 33,
            takes_open_dimensions=False,
            takes_floats=False,
            keeps=Keeping.CONTEXT,
            keeps_nothing_because="no",
            opens_aside=True,
        ),
    ),
    refused=(RefusedUnit(provider="Q", reason="no driver", remedy="install it", unit=NPU),),
)
PLAN = ExecutionPlan(
    model=ModelId("m"),
    target=Target.LATENCY,
    shapes=((TensorName("x"), (1, 3)),),
    subgraphs=(),
    is_plain=True,
    reason="no other",
    predicted_s=None,
    measured_s=0.25,
    plain_s=0.25,
    plain_over_plan=None,
    rejections=(),
    undivided_because=None,
    profiling_s=1.5,
    placements=(
        Placement(
            unit=GPU,
            taken=3,
            refused=(RefusedNode(position=1, label="node 1", ran_on="cpu", reason="no kernel"),),
            removed=2,
            evidence="the assignment record",
        ),
    ),
)
BOUNDS = (Bound(target=Target.LATENCY, limit=0.08), Bound(target=Target.THROUGHPUT, limit=5.0))
CODEC = Codec()
DIRECTIONS = {
    "from_client": CODEC.from_client,
    "from_agent": CODEC.from_agent,
    "to_worker": CODEC.to_worker,
    "from_worker": CODEC.from_worker,
    "to_builder": CODEC.to_builder,
    "from_builder": CODEC.from_builder,
    "to_planner": TO_PLANNER,
    "from_planner": FROM_PLANNER,
}
EXAMPLES: list[tuple[str, Message]] = [
    ("from_client", Infer("r", "m", (HEAD,), ("y",), 1.5)),
    ("from_client", Infer("r", "m", (), None, None)),
    ("from_client", Load("/m.onnx", None, Target.LATENCY, 2, ((TensorName("x"), (1, 3)),))),
    ("from_client", Load("/m.onnx", None, Target.LATENCY, None, (), pins=PINS)),
    (
        "from_client",
        Load(
            "/m.onnx",
            None,
            Target.LATENCY,
            None,
            (),
            over=("pi",),
            wire=AllowedWire(type=WireType.INT8, bound=0.02),
        ),
    ),
    ("from_client", AskModels()),
    ("from_client", AskDistributions("m")),
    ("from_client", AskDistributions("m", tuple(Target), BOUNDS, is_pareto=True)),
    ("from_agent", Failure(None, "busy", "later")),
    ("from_agent", Done("done")),
    (
        "to_worker",
        Deployment(
            epoch=EPOCH,
            subgraphs=(SubgraphFile(path="/m", level="all", threads=None, is_plain=True),),
            instances=1,
            pinned_cores=(0, 1),
            inputs=(SPEC,),
            outputs=None,
            warm_shapes=(),
        ),
    ),
    (
        "to_worker",
        Deployment(
            epoch=EPOCH,
            subgraphs=(FILE,),
            instances=2,
            pinned_cores=(),
            inputs=(),
            outputs=(),
            warm_shapes=(),
        ),
    ),
    ("to_worker", Run(EPOCH, 7, (HEAD,), ("y",))),
    ("from_worker", Ran(EPOCH, 7, (HEAD,), 0.1)),
    ("from_worker", RunError(EPOCH, -1, "run-failed", "no")),
    ("from_worker", Ready(EPOCH, (SPEC,), (), 0.1)),
    ("to_builder", Admit("/m.onnx")),
    (
        "to_builder",
        Build(model=ModelId("m"), target=Target.LATENCY, threads=None, shapes=(), is_fresh=False),
    ),
    ("to_builder", Admit("/m.onnx", PINS)),
    (
        "to_builder",
        Build(
            model=ModelId("m"),
            target=Target.THROUGHPUT,
            threads=2,
            shapes=(),
            is_fresh=True,
            general=General(is_plain=False, subgraphs=(FILE,), instances=2, pinned_cores=(0, 1)),
            pins=PINS,
            banned=(Banned(GPU, "it died"), Banned(NPU, "it died of keeping", is_keeping=True)),
            device=DEVICE,
        ),
    ),
    ("to_builder", Grant()),
    ("from_builder", Progress(0.5, "half")),
    ("from_builder", Trying((GPU, NPU), is_keeping=True)),
    ("from_builder", Trying(())),
    ("from_builder", Probed(DEVICE)),
    (
        "from_builder",
        Built(
            plan=PLAN,
            device=DEVICE,
            subgraphs=(FILE,),
            instances=2,
            pinned_cores=(0,),
            inputs=(SPEC,),
            outputs=(SPEC,),
            opens_aside=True,
            is_large=True,
        ),
    ),
    (
        "to_planner",
        PlanLoaded(
            name="m",
            model=ModelId("m"),
            targets=(Target.BYTES,),
            bounds=BOUNDS,
            is_pareto=True,
            effort=1e6,
        ),
    ),
    (
        "to_planner",
        PlanLoaded(
            name="m",
            model=ModelId("m"),
            around=around(peer(PI, "pi", board())),
            pins=(SegmentPin(segment=0, device=PI),),
            most_routes=1,
            is_divided=True,
            is_compared=True,
        ),
    ),
    ("to_planner", PlanProblem(problem(), (Target.LATENCY,), is_pareto=True)),
]
SHARED = (Failure, Progress)
"""What goes more than one way."""


@pytest.mark.parametrize(("direction", "message"), EXAMPLES)
def test_a_message_comes_back_as_it_was(direction: str, message: Message) -> None:
    assert decode(DIRECTIONS[direction], CODEC.encode(message)) == message


@pytest.mark.parametrize(("direction", "message"), EXAMPLES)
def test_a_message_is_not_understood_in_the_other_directions(
    direction: str, message: Message
) -> None:
    for other, decoder in DIRECTIONS.items():
        if other != direction and not isinstance(message, SHARED):
            with pytest.raises(ProtocolError):
                decode(decoder, CODEC.encode(message))


@given(st.sampled_from(sorted(DIRECTIONS)), st.binary(max_size=300))
def test_random_bytes_are_never_anything_but_a_protocol_error(direction: str, raw: bytes) -> None:
    with pytest.raises(ProtocolError, match="not understood"):
        decode(DIRECTIONS[direction], raw)


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_damaged_message_is_understood_or_a_protocol_error(
    example: tuple[str, Message], data: st.DataObject
) -> None:
    direction, message = example
    raw = bytearray(CODEC.encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        how = data.draw(st.sampled_from(["set", "delete", "insert"]))
        value = data.draw(st.integers(0, 255))
        if how == "set":
            raw[at] = value
        elif how == "insert":
            raw.insert(at, value)
        elif len(raw) > 1:
            del raw[at]
    try:
        decode(DIRECTIONS[direction], bytes(raw))
    except ProtocolError:
        return


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(st.sampled_from(EXAMPLES), st.data(), json_values)
def test_any_field_may_hold_anything(
    example: tuple[str, Message], data: st.DataObject, value: Any
) -> None:
    direction, message = example
    plain = msgspec.msgpack.decode(CODEC.encode(message))
    plain[data.draw(st.sampled_from(sorted(plain)))] = value
    try:
        decode(DIRECTIONS[direction], msgspec.msgpack.encode(plain))
    except ProtocolError:
        return


def test_deep_nesting_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        decode(CODEC.from_client, b"\x91" * 100_000)


def test_an_unknown_field_is_refused() -> None:
    raw = msgspec.msgpack.encode({"kind": "unload", "model": "m", "force": True})
    with pytest.raises(ProtocolError, match="force"):
        decode(CODEC.from_client, raw)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request", ""),
        ("request", "r" * 65),
        ("model", "m" * 4097),
        ("deadline_s", math.nan),
        ("deadline_s", math.inf),
        ("deadline_s", MAX_DEADLINE_S * 1.01),
        ("outputs", ["y"] * 4097),
        ("tensors", [{"name": "x", "element_type": "float32", "shape": [2**48 + 1]}]),
        ("tensors", [{"name": "x", "element_type": "float32", "shape": [-1]}]),
        ("tensors", [{"name": "x", "element_type": "float32", "shape": [1] * 65}]),
        ("tensors", [{"name": "x", "element_type": "float33", "shape": [1]}]),
    ],
)
def test_a_request_out_of_bounds_is_refused(field: str, value: Any) -> None:
    plain = msgspec.msgpack.decode(CODEC.encode(Infer("r", "m", (HEAD,), None, 1.0)))
    raw = msgspec.msgpack.encode(plain | {field: value})
    with pytest.raises(ProtocolError):
        decode(CODEC.from_client, raw)


@pytest.mark.parametrize(
    "wire",
    [
        *({"type": "fp16", "bound": bound} for bound in (0.0, 1.0, -0.1, math.nan, math.inf)),
        *({"type": kind, "bound": 0.1} for kind in ("fp8", "", 3)),
        {"type": "fp16"},
    ],
)
def test_as_what_tensors_are_sent_is_known_and_bounded(wire: dict[str, Any]) -> None:
    load = CODEC.encode(Load("/m.onnx", None, Target.LATENCY, None, ()))
    raw = msgspec.msgpack.encode(msgspec.msgpack.decode(load) | {"wire": wire})
    with pytest.raises(ProtocolError, match="wire"):
        decode(CODEC.from_client, raw)


@pytest.mark.parametrize("bound", [0.0, 1.0, -0.1, math.nan, math.inf])
def test_a_bound_on_float16_is_a_share(bound: float) -> None:
    load = Load("/m.onnx", None, Target.LATENCY, None, (), half_bound=bound)
    with pytest.raises(ProtocolError, match="half_bound"):
        decode(CODEC.from_client, CODEC.encode(load))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("targets", ["latency"] * 6),
        ("targets", ["comfort"]),
        ("bounds", [{"target": "latency", "limit": -1.0}]),
        ("bounds", [{"target": "latency", "limit": math.nan}]),
        ("bounds", [{"target": "latency", "limit": math.inf}]),
        ("bounds", [{"target": "latency"}]),
        ("is_pareto", 1),
        ("model", "m" * 4097),
        ("effort", 1.0),
    ],
)
def test_distributions_that_make_no_sense_are_refused(field: str, value: Any) -> None:
    plain = msgspec.msgpack.decode(CODEC.encode(AskDistributions("m")))
    with pytest.raises(ProtocolError):
        decode(CODEC.from_client, msgspec.msgpack.encode(plain | {field: value}))


@pytest.mark.parametrize("effort", [0.0, -1.0, math.nan, math.inf, 1e10])
def test_an_effort_without_end_is_refused(effort: float) -> None:
    ask = PlanProblem(problem(), effort=effort)
    with pytest.raises(ProtocolError, match="effort"):
        decode(TO_PLANNER, CODEC.encode(ask))


def test_a_problem_that_contradicts_itself_is_refused() -> None:
    plain = msgspec.msgpack.decode(CODEC.encode(PlanProblem(problem())))
    plain["problem"]["owner"] = "nobody"
    with pytest.raises(ProtocolError, match="got device nobody"):
        decode(TO_PLANNER, msgspec.msgpack.encode(plain))


@pytest.mark.parametrize(
    "pins",
    [
        [{"pattern": "a", "unit": "gpu0"}] * (MAX_PINS + 1),
        [{"pattern": "a"}],
        [{"unit": "gpu0"}],
        [{"pattern": 3, "unit": "gpu0"}],
        [["a", "gpu0"]],
        {"a": "gpu0"},
    ],
)
def test_pins_that_are_too_many_or_none_are_refused(pins: Any) -> None:
    load = Load("/m.onnx", None, Target.LATENCY, None, (), pins=PINS)
    plain = msgspec.msgpack.decode(CODEC.encode(load))
    with pytest.raises(ProtocolError):
        decode(CODEC.from_client, msgspec.msgpack.encode(plain | {"pins": pins}))


def test_what_a_user_wants_whether_it_pays_or_not_is_forced() -> None:
    build = Build(
        model=ModelId("m"), target=Target.LATENCY, threads=None, shapes=(), is_fresh=False
    )
    assert not build.is_forced
    assert msgspec.structs.replace(build, pins=PINS).is_forced
    assert msgspec.structs.replace(build, subgraphs=1).is_forced


def test_a_deadline_in_the_past_is_a_message_like_any_other() -> None:
    infer = Infer("r", "m", (), None, -math.inf)
    assert decode(CODEC.from_client, CODEC.encode(infer)) == infer


def test_the_size_of_a_tensor_is_that_of_its_packed_elements() -> None:
    assert HEAD.size_bytes == 12
    assert TensorHead("x", ElementType.INT4, (3,)).size_bytes == 2
    assert TensorHead("x", ElementType.FLOAT16, ()).size_bytes == 2
    assert TensorHead("x", ElementType.FLOAT64, (0, 5)).size_bytes == 0


def test_a_name_that_is_no_unicode_is_the_users_mistake() -> None:
    with pytest.raises(BadRequest, match="valid UTF-8"):
        CODEC.encode(Unload("caf\udce9"))


@pytest.mark.parametrize("text", ["x" * 100_000, "caf\udce9", "é" * 70_000, ""])
def test_the_text_of_any_error_fits_into_a_message(text: str) -> None:
    failure = Failure("r", RunFailed.code, error_text(RunFailed(text)))
    assert decode(CODEC.from_agent, CODEC.encode(failure)) == failure
