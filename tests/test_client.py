"""The Client against a made-up agent: what it sends, repeats, waits for and gives up."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from edge_agent import clock
from edge_agent.client import Client
from edge_agent.devices import UnitId
from edge_agent.errors import (
    AgentUnavailable,
    BadRequest,
    Busy,
    DeadlineExceeded,
    InputMismatch,
    ModelQuarantined,
    ProtocolError,
    RunFailed,
    UnknownModel,
)
from edge_agent.planner.answering import answer
from edge_agent.plans import Bound, Pin, Target
from edge_agent.tensors import ElementType
from edge_agent.wire.frames import pack_prefix
from edge_agent.wire.messages import (
    AskDistributions,
    Distributions,
    Done,
    Failure,
    Infer,
    Load,
    Models,
    Progress,
    Replan,
    Result,
    Unload,
)
from edge_agent.wire.parts import (
    MAX_PINS,
    ModelState,
    TensorHead,
)
from edge_agent.wire.routes import pack
from tests.fake_agent import Asked, FakeAgent, doubles, state
from tests.planner.made_problems import problem

X = np.array([[1.0, 2.0]], np.float32)


def wait_until(is_so: Callable[[], object], what: str) -> None:
    until_s = clock.monotonic_s() + 10.0
    while not is_so():
        assert clock.monotonic_s() < until_s, f"never: {what}"
        clock.sleep_s(0.002)


class Script:
    """Answers one message after the other as told, then well."""

    def __init__(self, *steps: Callable[[Asked], None]) -> None:
        self._steps = list(steps)

    def __call__(self, asked: Asked) -> None:
        (self._steps.pop(0) if self._steps else doubles)(asked)


def test_outputs_come_by_name_and_requests_are_told_apart() -> None:
    with FakeAgent() as agent, Client(agent.path) as client:
        for number in range(3):
            got = client.infer("m", {"x": X + number})
            assert list(got) == ["y"]
            np.testing.assert_array_equal(got["y"], (X + number) * 2)
        assert len({asked.infer.request for asked in agent.asked}) == 3
        assert agent.connections == 1


def test_a_request_carries_what_the_caller_said() -> None:
    with FakeAgent() as agent, Client(agent.path) as client:
        client.infer("m", {"x": X}, ["y"], deadline_s=30.0)
        client.infer("m", {"x": X}, deadline_s=None)
        first, second = (asked.infer for asked in agent.asked)
        assert (first.model, first.outputs) == ("m", ("y",))
        assert first.deadline_s is not None
        assert 29.0 < first.deadline_s <= 30.0
        assert (second.outputs, second.deadline_s) == (None, None)


def test_lists_and_scalars_are_inputs_too() -> None:
    with FakeAgent() as agent, Client(agent.path) as client:
        client.infer("m", {"x": [[1.0, 2.0]]})
        client.infer("m", {"x": 3})
        heads = [asked.infer.tensors[0] for asked in agent.asked]
        assert [(h.element_type, h.shape) for h in heads] == [("float64", (1, 2)), ("int64", ())]


def test_an_input_that_cannot_be_sent_is_refused_before_anything_is() -> None:
    with FakeAgent() as agent, Client(agent.path) as client:
        with pytest.raises(InputMismatch, match='tensor "x"'):
            client.infer("m", {"x": np.zeros(1, "datetime64[s]")})
        with pytest.raises(BadRequest, match=r"in valid UTF-8$"):
            client.infer("caf\udce9", {"x": X})
        assert agent.asked == []


@pytest.mark.parametrize(
    "error",
    [
        UnknownModel('model "m" is not loaded'),
        Busy("try again later"),
        RunFailed("it failed"),
        ModelQuarantined("killed its worker"),
        DeadlineExceeded("late"),
    ],
)
def test_an_error_of_the_agent_is_raised_as_itself_and_not_repeated(error: Exception) -> None:
    with FakeAgent(Script(lambda asked: asked.fail(error))) as agent:  # type: ignore[arg-type]
        with Client(agent.path) as client:
            with pytest.raises(type(error), match=str(error)):
                client.infer("m", {"x": X})
            assert len(agent.asked) == 1
            client.infer("m", {"x": X})
        assert agent.connections == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda asked: asked.answer_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        lambda asked: asked.answer_bytes(pack_prefix(3, 0) + b"\xc1\xc1\xc1"),
        lambda asked: asked.result({"y": X}, "another request"),
        lambda asked: asked.answer(Done("what?")),
        lambda asked: asked.answer(asked.message),
        lambda asked: asked.answer(Failure(None, "protocol", "message not understood")),
    ],
)
def test_an_answer_that_is_none_is_a_protocol_error(nonsense: Callable[[Asked], None]) -> None:
    with (
        FakeAgent(Script(nonsense)) as agent,
        Client(agent.path) as client,
        pytest.raises(ProtocolError),
    ):
        client.infer("m", {"x": X})


def test_threads_share_a_client_without_mixing_answers() -> None:
    with FakeAgent() as agent, Client(agent.path) as client, ThreadPoolExecutor(8) as pool:

        def ask(number: int) -> None:
            got = client.infer("m", {"x": X * number})
            np.testing.assert_array_equal(got["y"], X * number * 2)

        list(pool.map(ask, range(200)))
        assert agent.connections <= 8
        assert len({asked.infer.request for asked in agent.asked}) == 200


# ---- an agent that goes away


def test_a_request_cut_off_is_sent_again_under_its_id_with_what_is_left_of_its_time() -> None:
    with FakeAgent(Script(Asked.hang_up)) as agent, Client(agent.path) as client:
        got = client.infer("m", {"x": X}, deadline_s=20.0)
        np.testing.assert_array_equal(got["y"], X * 2)
        first, second = (asked.infer for asked in agent.asked)
        assert first.request == second.request
        assert first.deadline_s is not None
        assert second.deadline_s is not None
        assert second.deadline_s < first.deadline_s


def test_an_answer_cut_off_in_the_middle_is_asked_for_again() -> None:
    def half(asked: Asked) -> None:
        asked.answer_bytes(pack_prefix(50, 8) + b"\x83")
        asked.hang_up()

    with FakeAgent(Script(half)) as agent, Client(agent.path) as client:
        np.testing.assert_array_equal(client.infer("m", {"x": X})["y"], X * 2)
        assert len({asked.infer.request for asked in agent.asked}) == 1


def test_a_client_waits_for_an_agent_that_starts_again() -> None:
    with FakeAgent() as agent, Client(agent.path) as client, ThreadPoolExecutor(1) as pool:
        client.infer("m", {"x": X})
        agent.die()
        waiting = pool.submit(client.infer, "m", {"x": X}, deadline_s=20.0)
        agent.start()
        np.testing.assert_array_equal(waiting.result()["y"], X * 2)


def test_idle_connections_to_a_dead_agent_are_not_tried_one_by_one() -> None:
    count = 40
    with FakeAgent() as agent, Client(agent.path) as client, ThreadPoolExecutor(count) as pool:
        together = threading.Barrier(count)

        def wait_for_all(asked: Asked) -> None:
            together.wait(10.0)
            doubles(asked)

        agent.on_asked = wait_for_all
        list(pool.map(lambda _: client.infer("m", {"x": X}), range(count)))
        assert agent.connections == count
        agent.on_asked = doubles
        agent.die()
        agent.start()
        # One by one, with a pause after each, they would take two seconds.
        client.infer("m", {"x": X}, deadline_s=1.5)
        assert agent.connections == count + 1


def test_no_agent_at_all_is_told_at_once(tmp_path: Path) -> None:
    with Client(tmp_path / "a.sock") as client:
        started_s = clock.monotonic_s()
        with pytest.raises(AgentUnavailable, match="edge-agent serve"):
            client.infer("m", {"x": X}, deadline_s=60.0)
        assert clock.monotonic_s() - started_s < 5.0


def test_an_agent_that_does_not_come_back_is_given_up_at_the_deadline() -> None:
    with FakeAgent() as agent, Client(agent.path) as client:
        client.infer("m", {"x": X})
        agent.die()
        started_s = clock.monotonic_s()
        with pytest.raises((AgentUnavailable, DeadlineExceeded)):
            client.infer("m", {"x": X}, deadline_s=0.2)
        assert 0.1 < clock.monotonic_s() - started_s < 5.0
        agent.start()


def test_an_agent_that_hangs_up_on_every_request_is_not_asked_in_a_tight_loop() -> None:
    with FakeAgent(Asked.hang_up) as agent, Client(agent.path) as client:
        with pytest.raises((AgentUnavailable, DeadlineExceeded)):
            client.infer("m", {"x": X}, deadline_s=0.3)
        assert 2 <= len(agent.asked) <= 7


def test_a_question_finds_the_agent_that_has_started_again() -> None:
    with FakeAgent() as agent, Client(agent.path) as client:
        client.infer("m", {"x": X})
        agent.die()
        agent.start()
        assert client.model("m").name == "m"


def test_a_question_cut_off_is_told_and_not_repeated() -> None:
    with FakeAgent(Script(Asked.hang_up)) as agent, Client(agent.path) as client:
        with pytest.raises(AgentUnavailable, match="ended before it answered"):
            client.unload("m")
        assert [asked.message for asked in agent.asked] == [Unload("m")]


# ---- deadlines


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, -math.inf])
def test_a_deadline_already_past_sends_nothing(deadline_s: float) -> None:
    with FakeAgent() as agent, Client(agent.path) as client:
        with pytest.raises(DeadlineExceeded, match="already past"):
            client.infer("m", {"x": X}, deadline_s=deadline_s)
        assert agent.asked == []


@pytest.mark.parametrize("deadline_s", [math.nan, math.inf, 1e9])
def test_a_deadline_that_is_none_is_refused(deadline_s: float) -> None:
    refused = pytest.raises(BadRequest, match="want at most 1000000 seconds, or None")
    with FakeAgent() as agent, Client(agent.path) as client, refused:
        client.infer("m", {"x": X}, deadline_s=deadline_s)


def test_a_deadline_that_passes_while_waiting_ends_the_wait_and_its_connection() -> None:
    answered = threading.Event()

    def late(asked: Asked) -> None:
        answered.wait(10.0)
        doubles(asked)

    with FakeAgent(Script(late)) as agent, Client(agent.path) as client:
        with pytest.raises(DeadlineExceeded):
            client.infer("m", {"x": X}, deadline_s=0.05)
        answered.set()
        # The late answer must not be taken for that of the next request.
        np.testing.assert_array_equal(client.infer("m", {"x": X * 5})["y"], X * 10)
        assert agent.connections == 2


def test_a_deadline_that_passes_while_sending_ends_the_request() -> None:
    blocked = threading.Event()

    with FakeAgent(lambda _: None) as agent, Client(agent.path) as client:
        # An agent that is busy with the first message reads no further.
        agent.on_asked = lambda _: blocked.wait(10.0) and None
        with pytest.raises(DeadlineExceeded):
            client.infer("m", {"x": np.zeros((8 << 20, 2), np.float32)}, deadline_s=0.0005)
        blocked.set()


# ---- closing


def test_a_closed_client_says_so_and_leaves_no_connection() -> None:
    with FakeAgent() as agent:
        client = Client(agent.path)
        client.infer("m", {"x": X})
        client.close()
        client.close()
        with pytest.raises(BadRequest, match="closed"):
            client.infer("m", {"x": X})
        with pytest.raises(BadRequest, match="closed"):
            client.models()


def test_a_request_under_way_when_its_client_is_closed_is_still_answered() -> None:
    go_on = threading.Event()

    def wait(asked: Asked) -> None:
        go_on.wait(10.0)
        doubles(asked)

    with FakeAgent(wait) as agent, ThreadPoolExecutor(1) as pool:
        client = Client(agent.path)
        waiting = pool.submit(client.infer, "m", {"x": X})
        wait_until(lambda: agent.asked, "the request is sent")
        client.close()
        go_on.set()
        np.testing.assert_array_equal(waiting.result()["y"], X * 2)


def test_closing_ends_the_wait_for_an_agent_that_is_gone() -> None:
    with FakeAgent() as agent, ThreadPoolExecutor(1) as pool:
        client = Client(agent.path)
        client.infer("m", {"x": X})
        agent.die()
        waiting = pool.submit(client.infer, "m", {"x": X}, deadline_s=None)
        client.close()
        with pytest.raises(BadRequest, match="closed"):
            waiting.result()
        agent.start()


# ---- models


def test_load_sends_an_absolute_path_and_checks_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = Script(lambda asked: asked.answer(Models((state(),))))
    with FakeAgent(script) as agent, Client(agent.path) as client:
        got = client.load("m.onnx", "m", target="throughput", threads=2, shapes={"x": (1, 2)})
        assert got == state()
        (asked,) = agent.asked
        assert isinstance(asked.message, Load)
        assert asked.message.path == str(tmp_path / "m.onnx")
        assert (asked.message.target, asked.message.threads) == (Target.THROUGHPUT, 2)
        assert asked.message.shapes == (("x", (1, 2)),)
        with pytest.raises(BadRequest, match='got "speed", want one of latency, throughput'):
            client.load("m.onnx", target="speed")
        assert len(agent.asked) == 1


@pytest.mark.parametrize(
    ("allow", "bound"),
    [((), None), (["fp16"], 0.01), ("fp16", 0.01), (["fp16=0.05"], 0.05), (["fp16=1e-9"], 1e-9)],
)
def test_load_sends_where_samples_are_and_what_float16_may_be_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allow: Sequence[str], bound: float | None
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        FakeAgent(lambda asked: asked.answer(Models((state(),)))) as agent,
        Client(agent.path) as client,
    ):
        client.load("m.onnx", samples="real", allow=allow)
        client.load("m.onnx", allow=allow)
        with_samples, without = (asked.message for asked in agent.asked)
    assert isinstance(with_samples, Load)
    assert isinstance(without, Load)
    assert (with_samples.samples, without.samples) == (str(tmp_path / "real"), None)
    assert (with_samples.half_bound, without.half_bound) == (bound, bound)


@pytest.mark.parametrize("allow", ["fp8", "fp16=", "fp16=0", "fp16=1", "fp16=nan", "fp16=x"])
def test_load_refuses_to_allow_what_is_unknown(allow: str) -> None:
    with (
        FakeAgent() as agent,
        Client(agent.path) as client,
        pytest.raises(BadRequest, match=f'allow: got "{allow}", want fp16 or fp16=BOUND'),
    ):
        client.load("m.onnx", allow=["fp16", allow])


def test_load_sends_the_pins_in_their_order() -> None:
    with FakeAgent(says(state())) as agent, Client(agent.path) as client:
        client.load("m.onnx", pins={"/b/*": "npu0", "a": "cpu"})
        client.load("m.onnx", pins={})
        client.load("m.onnx")
        sent = [asked.message for asked in agent.asked]
    assert all(isinstance(message, Load) for message in sent)
    assert [message.pins for message in sent if isinstance(message, Load)] == [
        (Pin(pattern="/b/*", unit=UnitId("npu0")), Pin(pattern="a", unit=UnitId("cpu"))),
        (),
        (),
    ]


@pytest.mark.parametrize(
    ("pins", "says"),
    [
        ({"": "gpu0"}, 'pins: got "" on "gpu0", want a pattern and a unit'),
        ({"a": ""}, 'pins: got "a" on "", want a pattern and a unit'),
        ({f"n{i}": "gpu0" for i in range(MAX_PINS + 1)}, "pins: got 257, want at most 256"),
    ],
)
def test_pins_that_can_mean_nothing_are_not_sent(pins: dict[str, str], says: str) -> None:
    with (
        FakeAgent(lambda asked: asked.answer(Models((state(),)))) as agent,
        Client(agent.path) as client,
    ):
        with pytest.raises(BadRequest) as told:
            client.load("m.onnx", pins=pins)
        assert str(told.value) == says
        assert agent.asked == []


def test_as_many_pins_as_a_message_takes_are_sent() -> None:
    with FakeAgent(says(state())) as agent, Client(agent.path) as client:
        client.load("m.onnx", pins={f"n{i}": "gpu0" for i in range(MAX_PINS)})
        (asked,) = agent.asked
        assert isinstance(asked.message, Load)
        assert len(asked.message.pins) == MAX_PINS


def says(shown: ModelState) -> Callable[[Asked], None]:
    return lambda asked: asked.answer(Models((shown,)))


def test_waiting_asks_until_the_plan_is_made() -> None:
    working = says(state(planning="working"))
    script = Script(working, working, says(state()))
    with FakeAgent(script) as agent, Client(agent.path) as client:
        assert client.replan("m", wait=True).planning == "done"
        assert agent.asked[0].message == Replan("m")
        assert len(agent.asked) == 3


def test_waiting_ends_with_a_failed_plan_a_quarantine_or_a_timeout() -> None:
    states = [state(planning="failed"), state(state="quarantined", planning="working")]
    for shown in states:
        with FakeAgent(says(shown)) as agent, Client(agent.path) as client:
            assert client.wait("m") == shown
    working = state(planning="working", progress="measuring")
    with FakeAgent(says(working)) as agent, Client(agent.path) as client:
        with pytest.raises(DeadlineExceeded, match="measuring"):
            client.wait("m", timeout_s=0.0)
        with pytest.raises(UnknownModel, match='"z" is not loaded; loaded: m'):
            client.wait("z")


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.infer("m", {"x": X}, deadline_s="1"),
        lambda client: client.wait("m", timeout_s=math.nan),
        lambda client: client.load("m.onnx", threads="2"),
        lambda client: client.load("m.onnx", subgraphs=1.5),
        lambda client: client.load("m.onnx", shapes={"x": "1x3"}),
        lambda client: client.load("m.onnx", allow=0.05),
        lambda client: client.load("m.onnx", wait=True, timeout_s="1"),
        lambda client: client.plan("m", {"x": (-1,)}),
        lambda client: client.distributions("m", bounds={"latency": "80ms"}),
        lambda client: client.distributions("m", bounds={"bytes": math.inf}),
        lambda client: client.distributions("m", ["latency"], is_pareto=True),
        lambda client: client.distributions("m", "latency", is_pareto=True),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_anything_is_sent(
    call: Callable[[Client], object],
) -> None:
    with FakeAgent() as agent, Client(agent.path) as client:
        with pytest.raises(BadRequest, match=r"got .*, want"):
            call(client)
        assert agent.asked == []


NO_TEXT = (5, None, b"m", ["m"], True)
NO_FLAG: tuple[object, ...] = ("yes", 1, None, [])
NO_DICT: tuple[object, ...] = (5, "x", [("x", 1)], [])


@pytest.mark.parametrize(
    ("name", "wrong", "call"),
    [
        ("model", NO_TEXT, lambda client, value: client.infer(value, {"x": X})),
        ("model", NO_TEXT, lambda client, value: client.plan(value)),
        ("model", NO_TEXT, lambda client, value: client.plan(value, {"x": (1,)})),
        ("model", NO_TEXT, lambda client, value: client.distributions(value)),
        ("model", NO_TEXT, lambda client, value: client.wait(value)),
        ("model", NO_TEXT, lambda client, value: client.replan(value)),
        ("model", NO_TEXT, lambda client, value: client.unload(value)),
        ("name", NO_TEXT, lambda client, value: client.model(value)),
        ("name", (5, b"m", ["m"]), lambda client, value: client.load("m.onnx", value)),
        ("path", NO_TEXT, lambda client, value: client.load(value)),
        ("samples", (5, b"m", ["m"]), lambda client, value: client.load("m.onnx", samples=value)),
        ("inputs", (*NO_DICT, None), lambda client, value: client.infer("m", value)),
        ("inputs", ({5: X}, {None: X}), lambda client, value: client.infer("m", value)),
        ("outputs", (5, [5], [b"y"]), lambda client, value: client.infer("m", {"x": X}, value)),
        ("deadline_s", ("1", True), lambda c, value: c.infer("m", {"x": X}, deadline_s=value)),
        ("wait", NO_FLAG, lambda client, value: client.load("m.onnx", wait=value)),
        ("wait", NO_FLAG, lambda client, value: client.replan("m", wait=value)),
        ("is_pareto", NO_FLAG, lambda client, value: client.distributions("m", is_pareto=value)),
        ("timeout_s", ("1", True), lambda client, value: client.wait("m", timeout_s=value)),
        ("timeout_s", ("1", []), lambda client, value: client.load("m.onnx", timeout_s=value)),
        ("shapes", NO_DICT, lambda client, value: client.load("m.onnx", shapes=value)),
        ("shapes", ({5: (1,)},), lambda client, value: client.load("m.onnx", shapes=value)),
        ("shapes", NO_DICT, lambda client, value: client.plan("m", value)),
        ("pins", NO_DICT, lambda client, value: client.load("m.onnx", pins=value)),
        ("pins", ({"a": 5}, {5: "cpu"}), lambda client, value: client.load("m.onnx", pins=value)),
        ("bounds", NO_DICT, lambda client, value: client.distributions("m", bounds=value)),
        ("bounds", ({5: 1.0},), lambda client, value: client.distributions("m", bounds=value)),
        ("bounds", ([("latency", 1)],), lambda c, value: c.distributions("m", bounds=value)),
        ("targets", (5, None, [5], b"x"), lambda c, value: c.distributions("m", value)),
        ("targets", ([np.zeros(2)],), lambda client, value: client.distributions("m", value)),
        ("target", (5, None, np.zeros(2)), lambda c, value: c.load("m.onnx", target=value)),
        ("threads", ("2", 1.5, True), lambda c, value: c.load("m.onnx", threads=value)),
        ("subgraphs", ("2", 1.5), lambda client, value: client.load("m.onnx", subgraphs=value)),
        ("allow", (5, None, [5]), lambda client, value: client.load("m.onnx", allow=value)),
        ("on_progress", (5, None), lambda c, value: c.distributions("m", on_progress=value)),
        ("on_progress", (5, None), lambda c, value: c.plan("m", on_progress=value)),
    ],
)
def test_an_argument_of_the_wrong_type_is_named_before_anything_is_sent(
    name: str, wrong: Sequence[object], call: Callable[[Client, object], object]
) -> None:
    with FakeAgent() as agent, Client(agent.path) as client:
        for value in wrong:
            with pytest.raises(BadRequest, match=f"^{name}: got .*, want ") as told:
                call(client, value)
            assert type(told.value) is BadRequest
        assert agent.asked == []


def test_a_socket_is_a_path() -> None:
    for wrong in (5, b"agent.sock", ["agent.sock"]):
        with pytest.raises(BadRequest, match=r"^socket: got .*, want a path"):
            Client(wrong)  # type: ignore[arg-type]


def test_what_is_nearly_of_the_right_type_is_taken() -> None:
    with FakeAgent(says(state())) as agent, Client(agent.path) as client:
        client.load(Path("m.onnx"), "café", samples=Path("samples"), wait=np.bool_(False))  # type: ignore[arg-type]
        message = agent.asked[0].message
        assert isinstance(message, Load)
        assert (message.path, message.name) == (os.path.abspath("m.onnx"), "café")
        assert message.samples == os.path.abspath("samples")
    with FakeAgent(doubles) as agent, Client(agent.path) as client:
        assert list(client.infer("m", {"x": X}, outputs="y")) == ["y"]


def test_distributions_are_asked_for_as_the_caller_said() -> None:
    planned = answer(problem(), (Target.BYTES, Target.LATENCY), is_pareto=True)
    with (
        FakeAgent(lambda asked: asked.answer(Distributions(pack(planned)))) as agent,
        Client(agent.path) as client,
    ):
        got = client.distributions(
            "m", ["bytes", Target.LATENCY], is_pareto=True, bounds={"memory": 1 << 20}
        )
        assert got == planned
        assert [asked.message for asked in agent.asked] == [
            AskDistributions(
                model="m",
                targets=(Target.BYTES, Target.LATENCY),
                bounds=(Bound(target=Target.MEMORY, limit=float(1 << 20)),),
                is_pareto=True,
            )
        ]


def test_how_far_the_planner_is_reaches_the_caller_before_its_answer() -> None:
    planned = answer(problem(), (Target.LATENCY,))

    def tells(asked: Asked) -> None:
        asked.answer(Progress(fraction=0.25, what="a quarter"))
        asked.answer(Progress(fraction=0.5, what="half"))
        asked.answer(Distributions(pack(planned)))

    told: list[tuple[float, str]] = []
    with FakeAgent(tells) as agent, Client(agent.path) as client:
        got = client.distributions("m", on_progress=lambda *present: told.append(present))
        assert client.distributions("m") == got == planned
    assert told == [(0.25, "a quarter"), (0.5, "half")]


def test_the_wrong_answer_to_a_question_is_a_protocol_error() -> None:
    with (
        FakeAgent(lambda asked: asked.answer(Done("?"))) as agent,
        Client(agent.path) as client,
        pytest.raises(ProtocolError, match="got Done, want Models"),
    ):
        client.models()


BIG = np.arange(40_000, dtype=np.float32).reshape(200, 200)


def doubles_in_place(asked: Asked) -> None:
    """A well-behaved agent that puts outputs where there is room."""
    place = asked.infer.place
    if place is not None and place.outputs_bytes:
        asked.placed_result({"y": asked.arrays()["x"] * 2})
    else:
        doubles(asked)


def test_large_inputs_and_outputs_pass_through_shared_memory() -> None:
    with FakeAgent(doubles_in_place) as agent, Client(agent.path) as client:
        for number in range(4):
            got = client.infer("m", {"x": BIG + number})
            np.testing.assert_array_equal(got["y"], (BIG + number) * 2)
        places = [asked.infer.place for asked in agent.asked]
        assert [p and (p.inputs_bytes, p.outputs_bytes) for p in places] == [
            (160_000, 0),
            *[(160_000, 160_000)] * 3,
        ]
        assert agent.connections == 1


def test_an_answer_stays_as_it_is_when_the_memory_is_used_again() -> None:
    with FakeAgent(doubles_in_place) as agent, Client(agent.path) as client:
        answers = [client.infer("m", {"x": BIG + n})["y"] for n in range(3)]
        for number, answer in enumerate(answers):
            np.testing.assert_array_equal(answer, (BIG + number) * 2)
            answer += 1  # and it is the caller's own


def test_small_tensors_do_not_need_memory_and_large_outputs_alone_do() -> None:
    def repeats(asked: Asked) -> None:
        y = {"y": np.resize(asked.arrays()["x"], 40_000)}
        asked.placed_result(y) if asked.infer.place else asked.result(y)

    with FakeAgent(repeats) as agent, Client(agent.path) as client:
        for _ in range(2):
            assert client.infer("m", {"x": X})["y"].shape == (40_000,)
        assert [a.infer.place is not None for a in agent.asked] == [False, True]
    with FakeAgent() as agent, Client(agent.path) as client:
        for _ in range(2):
            client.infer("m", {"x": X})
        assert [a.infer.place for a in agent.asked] == [None, None]


def test_inputs_of_every_size_and_several_types_arrive_through_one_connection() -> None:
    with FakeAgent(lambda asked: asked.result(asked.arrays())) as agent:
        with Client(agent.path) as client:
            for rows in (20_000, 3, 70_000, 50_000):
                sent = {
                    "h": np.arange(rows, dtype=np.float16),
                    "b": np.arange(rows) % 3 == 0,
                    "c": np.zeros((0, 5), np.complex64),
                    "t": np.arange(2 * rows).reshape(2, rows).T,
                }
                got = client.infer("m", sent)
                for name, array in sent.items():
                    np.testing.assert_array_equal(got[name], array)
                    assert got[name].dtype == array.dtype
        assert agent.connections == 1


def test_after_a_failure_the_memory_is_not_used_again() -> None:
    """Whoever was asked may still write into it."""
    with FakeAgent(Script(lambda asked: asked.fail(DeadlineExceeded("late")))) as agent:
        with Client(agent.path) as client:
            with pytest.raises(DeadlineExceeded):
                client.infer("m", {"x": BIG})
            np.testing.assert_array_equal(client.infer("m", {"x": BIG})["y"], BIG * 2)
        assert agent.connections == 2


def test_a_placed_answer_without_a_place_is_no_answer() -> None:
    def lies(asked: Asked) -> None:
        head = TensorHead("y", ElementType.FLOAT32, (100_000,))
        asked.answer(Result(asked.infer.request, (head,), is_placed=True))

    with FakeAgent(lies) as agent, Client(agent.path) as client:
        for x in (X, BIG):
            with pytest.raises(ProtocolError, match="outputs of 400000 bytes"):
                client.infer("m", {"x": x})


def test_without_memory_to_share_tensors_pass_through_the_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(_name: str, _flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", no_memory)
    with FakeAgent() as agent, Client(agent.path) as client:
        np.testing.assert_array_equal(client.infer("m", {"x": BIG})["y"], BIG * 2)
        assert agent.asked[0].infer.place is None


def test_a_large_request_is_sent_again_to_an_agent_that_starts_again() -> None:
    with FakeAgent(doubles_in_place) as agent, Client(agent.path) as client:
        client.infer("m", {"x": BIG})
        agent.die()
        agent.start()
        np.testing.assert_array_equal(client.infer("m", {"x": BIG})["y"], BIG * 2)


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_counts_out_of_their_bounds_are_refused_before_anything_is_sent(count: int) -> None:
    with FakeAgent() as agent, Client(agent.path) as client:
        with pytest.raises(
            BadRequest, match=f"threads: got {count}, want a whole number of 1 to 4096"
        ):
            client.load("m.onnx", threads=count)
        with pytest.raises(
            BadRequest, match=f"subgraphs: got {count}, want a whole number of 1 to 4096"
        ):
            client.load("m.onnx", subgraphs=count)
        assert agent.asked == []


_FORKING = """
import os, sys
import numpy as np
from edge_agent import Client
client = Client(sys.argv[1])
x = np.ones((1, 2), np.float32)
client.infer("m", {"x": x})
child = os.fork()
number = 7 if child == 0 else 3
wrong = sum(
    not np.array_equal(client.infer("m", {"x": number * x})["y"], 2 * number * x)
    for _ in range(20)
)
if child == 0:
    os._exit(wrong)
sys.exit(wrong + os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_connections_and_request_ids_of_its_own() -> None:
    with FakeAgent(doubles) as agent:
        forking = subprocess.run([sys.executable, "-c", _FORKING, str(agent.path)], timeout=60)
        assert forking.returncode == 0
        requests = [a.message.request for a in agent.asked if isinstance(a.message, Infer)]
        assert len(requests) == len(set(requests)) == 41
        assert agent.connections == 2
