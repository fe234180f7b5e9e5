"""What clients may ask of a model, in the right way and in the wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_agent.client import Client
from edge_agent.errors import (
    BadRequest,
    Busy,
    DeadlineExceeded,
    InputMismatch,
    RunFailed,
    UnknownModel,
)
from edge_agent.tensors import ElementType
from tests.marks import marked_long
from tests.system.conftest import StartAgent
from tests.system.made_models import (
    ITERATIONS_PER_S,
    adding,
    classifying,
    count,
    counting,
    doubling,
    pair,
    pairing,
    speaking,
    x,
)
from tests.system.raw import RawConnection
from tests.system.running import QUICK_PLANS, Place, RunningAgent, stopped, wait_until

MAX_REQUEST_BYTES = 1 << 20


@pytest.fixture(scope="module")
def agent(shared_place: Place) -> Iterator[RunningAgent]:
    """Serves models of `made_models`."""
    config = QUICK_PLANS + f"[limits]\nmax_request_bytes = {MAX_REQUEST_BYTES}\n"
    running = RunningAgent(shared_place, (), config)
    try:
        with running.client() as client:
            client.load(pairing(shared_place.folder / "pair.onnx"))
            client.load(adding(shared_place.folder / "add.onnx"))
            client.load(counting(shared_place.folder / "count.onnx"))
            client.load(speaking(shared_place.folder / "speak.onnx"))
            client.load(classifying(shared_place.folder / "classify.onnx"))
            for name in ("pair", "add", "count", "speak", "classify"):
                client.wait(name, 60)
        yield running
    finally:
        running.end()


@pytest.fixture
def client(agent: RunningAgent) -> Iterator[Client]:
    with agent.client() as made:
        yield made


def test_text_and_types_that_numpy_lacks_go_in_and_come_out(client: Client) -> None:
    asked = {"t": np.array(["é", "", "b"], object), "x": np.float32([-1, 2, 7])}
    for _ in range(30):  # more often than connections are lent
        got = client.infer("speak", asked)
        assert got["u"].tolist() == ["é!", "!", "b!"]
        assert got["h"].dtype == ElementType.BFLOAT16.numpy_dtype
        assert got["h"].astype(np.float32).tolist() == [-1, 4, 21]
        assert got["i"].astype(np.int8).tolist() == [-1, 2, 7]
        asked["t"][0] += "é"
        assert client.infer("speak", asked, ["u"])["u"][0] == asked["t"][0] + "!"
        asked["t"][0] = "é"
    assert client.infer("speak", asked | {"t": ["a"]}, ["u"])["u"].tolist() == ["a!"]


def test_sequences_and_maps_go_in_and_come_out(client: Client) -> None:
    x = np.float32([[1, -2], [3, 4]])
    for _ in range(30):
        got: dict[str, Any] = client.infer("classify", {"x": x, "s": [x, x[:1] * 2]})
        assert got["by_class"] == [{"no": -1, "yes": 2}, {"no": -3, "yes": -4}]
        assert [a.tolist() for a in got["longer"]] == [x.tolist(), [[2, -4]], x.tolist()]
        assert got["joined"].tolist() == [[1, -2], [3, 4], [2, -4], [1, -2], [3, 4]]
    with pytest.raises(InputMismatch, match=r'"s": got float32.*, want seq.tensor.float'):
        client.infer("classify", {"x": x, "s": x})
    with pytest.raises(InputMismatch, match='"x": got a sequence, map or optional, want float32'):
        client.infer("classify", {"x": [x], "s": [x]})
    with pytest.raises(RunFailed, match="different data type"):
        client.infer("classify", {"x": x, "s": [np.array(["a"])]})
    assert client.infer("classify", {"x": x, "s": [x]}, ["joined"])["joined"].shape == (4, 2)


@pytest.mark.long
def test_a_classifier_is_asked_from_the_command_line(agent: RunningAgent, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.float32([[1, -2]]))
    given = [part for name in "xss" for part in ("--input", f"{name}={tmp_path / 'x.npy'}")]
    asked = ("infer", "classify", *given)
    joined = agent.command(*asked, "--outputs", "joined", "--json").json["outputs"]["joined"]
    assert joined["shape"] == [3, 2]
    twice = agent.command("infer", "classify", *given[:2], *given)
    assert (twice.code, "--input x: was given 2 times" in twice.err) == (2, True)
    found = agent.command(*asked, "--outputs", "by_class", "--json").json["outputs"]
    assert found == {"by_class": [{"no": -1.0, "yes": 2.0}]}
    text = agent.command(*asked, "--outputs", "by_class").out
    assert "by_class: 1 element\n  {'no': -1.0, 'yes': 2.0}" in text
    refused = agent.command(*asked, "--outputs", "by_class", "--output", str(tmp_path / "y.npz"))
    assert refused.code == 2
    assert "which .npz files cannot hold" in refused.err


def test_an_input_with_a_default_may_be_given_or_not(client: Client) -> None:
    asked = {"t": np.array(["a"]), "x": np.float32([-1, 2, 7])}
    for _ in range(30):
        own = client.infer("speak", asked | {"w": np.float32([0, 1, -1])}, ["h"])["h"]
        default = client.infer("speak", asked, ["h"])["h"]
        assert own.astype(np.float32).tolist() == [0, 2, -7]
        assert default.astype(np.float32).tolist() == [-1, 4, 21]
    with pytest.raises(InputMismatch, match=r'"w": got float32\[2\], want float32\[3\]'):
        client.infer("speak", asked | {"w": np.float32([0, 1])})
    state = client.model("speak")
    assert [(spec.name, spec.has_default) for spec in state.inputs] == [
        ("t", False),
        ("x", False),
        ("w", True),
    ]


def test_outputs_come_by_name_in_their_own_types(client: Client) -> None:
    got = client.infer("pair", pair())
    assert {name: (a.dtype, a.shape) for name, a in got.items()} == {
        "s": (np.dtype("float32"), (2, 3)),
        "p": (np.dtype("float32"), (2, 3)),
        "d": (np.dtype("float64"), (2,)),
    }
    assert (got["s"] == 5).all()
    assert (got["p"] == 4).all()
    assert got["d"].tolist() == [2.0, 4.0]


def test_only_the_outputs_that_are_asked_for_come(client: Client) -> None:
    assert list(client.infer("pair", pair(), ["p"])) == ["p"]


def test_open_dimensions_may_differ_from_request_to_request_and_be_zero(client: Client) -> None:
    for rows in (1, 7, 0, 2):
        got = client.infer("add", x(rows=rows))["y"]
        assert np.array_equal(got, x(rows=rows)["x"] + 1)


def test_inputs_that_are_not_contiguous_arrive_as_they_are(client: Client) -> None:
    turned = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert np.array_equal(client.infer("add", {"x": turned})["y"], turned + 1)


def _without(name: str) -> dict[str, Any]:
    return {key: array for key, array in pair().items() if key != name}


MISFITS: dict[str, tuple[dict[str, Any], list[str] | None, str]] = {
    "an input missing": (_without("b"), None, r'input "b" is missing: want float32\[N,3\]'),
    "an input too many": (
        pair() | {"q": np.zeros(1)},
        None,
        r'input "q" does not exist: want "a", "b", "k"',
    ),
    "a wrong dtype": (
        pair() | {"k": np.zeros(2, np.float32)},
        None,
        r'input "k": got float32\[2\], want float64\[2\]',
    ),
    "a wrong rank": (
        pair() | {"a": np.zeros((1, 2, 3), np.float32)},
        None,
        r'input "a": got float32\[1,2,3\], want float32\[N,3\]',
    ),
    "a wrong dimension": (
        pair() | {"k": np.zeros(3)},
        None,
        r'input "k": got float64\[3\], want float64\[2\]',
    ),
    "dimensions of one name that differ": (
        pair() | {"b": np.zeros((5, 3), np.float32)},
        None,
        r'input "b": got float32\[5,3\], want float32\[N,3\] with N = 2',
    ),
    "a dtype that cannot be sent": (
        pair() | {"a": np.zeros(3, "datetime64[s]")},
        None,
        r'tensor "a": got dtype datetime64\[s\], want a numeric, boolean or text one',
    ),
    "an output that does not exist": (
        pair(),
        ["s", "z"],
        r'output "z" does not exist: want "s", "p", "d"',
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_request_that_does_not_fit_its_model_is_told_what_was_got_and_wanted(
    case: str, client: Client
) -> None:
    inputs, outputs, reason = MISFITS[case]
    with pytest.raises(InputMismatch, match=reason):
        client.infer("pair", inputs, outputs)
    assert (client.infer("pair", pair())["s"] == 5).all()


def test_an_unknown_model_is_told_the_names_of_those_that_are_loaded(client: Client) -> None:
    names = "add, classify, count, pair, speak"
    with pytest.raises(UnknownModel, match=f'"nobody" is not loaded; loaded: {names}'):
        client.infer("nobody", x())


def test_a_large_request_that_is_refused_gets_one_answer(client: Client) -> None:
    # The payload comes in many pieces, each of which must not be answered by itself.
    with pytest.raises(UnknownModel):
        client.infer("nobody", {"x": np.zeros(200_000, np.float32)})
    assert client.infer("add", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]


def test_a_request_over_the_size_limit_is_refused_at_once(client: Client) -> None:
    rows = 2 * MAX_REQUEST_BYTES // 12
    with pytest.raises(BadRequest, match=rf"{rows * 12} bytes, want at most {MAX_REQUEST_BYTES}"):
        client.infer("add", x(rows=rows), deadline_s=10)
    assert client.infer("add", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]


def _infer_message(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "infer",
        "request": "r1",
        "model": "add",
        "tensors": [{"name": "x", "element_type": "float32", "shape": [2, 3]}],
        "outputs": None,
        "deadline_s": None,
    } | changes


def test_a_byte_length_that_does_not_fit_the_shape_is_refused(agent: RunningAgent) -> None:
    with RawConnection(agent.place.socket) as raw:
        raw.send(_infer_message(), bytes(20))
        answer, _ = raw.receive()
        assert answer["kind"] == "failure"
        assert answer["request"] == "r1"
        assert answer["code"] == InputMismatch.code
        assert answer["message"] == "payload of 20 bytes, want 24 for its tensors"
        raw.send(_infer_message(), np.zeros(6, np.float32).tobytes())
        answer, payload = raw.receive()
        assert answer["kind"] == "result"
        assert np.frombuffer(payload, np.float32).tolist() == [1.0] * 6


def test_a_deadline_already_past_is_refused_by_client_and_agent(
    client: Client, agent: RunningAgent
) -> None:
    with pytest.raises(DeadlineExceeded, match="already past"):
        client.infer("add", x(), deadline_s=-1.0)
    with RawConnection(agent.place.socket) as raw:
        raw.send(_infer_message(deadline_s=-0.5), bytes(24))
        answer, _ = raw.receive()
        assert answer["code"] == DeadlineExceeded.code
        assert "-0.500 s" in answer["message"]


def test_a_deadline_that_passes_ends_the_request_and_not_the_model(client: Client) -> None:
    with pytest.raises(DeadlineExceeded, match="deadline passed"):
        client.infer("count", count(0, ITERATIONS_PER_S), deadline_s=0.1)
    assert client.infer("count", count(5, 10))["total"] == 15


def test_several_threads_may_use_one_client(client: Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: client.infer("add", x(i))["y"], range(200)))
    for i, answer in enumerate(answers):
        assert answer.tolist() == [[i + 1, i + 2, i + 3]]


def test_beyond_the_limit_of_requests_a_client_hears_busy_at_once(
    start: StartAgent, tmp_path: Path
) -> None:
    agent = start("--max-requests", "2")
    with agent.client() as client, ThreadPoolExecutor(2) as pool:
        pid = client.load(adding(tmp_path / "add.onnx"), wait=True).worker_pid
        assert pid is not None
        with stopped(client.model("add").worker_pid or pid):
            waiting = [pool.submit(client.infer, "add", x(i)) for i in range(2)]
            wait_until(lambda: client.status().in_flight == 2, "two requests are in flight")
            with pytest.raises(Busy, match="2 requests are in flight, the limit is 2"):
                client.infer("add", x())
        assert [w.result()["y"][0, 0] for w in waiting] == [1.0, 2.0]
        assert client.infer("add", x(7.0))["y"][0, 0] == 8.0


def test_garbage_and_oversized_messages_are_dropped_and_counted_and_others_are_served(
    agent: RunningAgent,
) -> None:
    rng = np.random.default_rng(3)
    bad = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3,
        rng.bytes(100_000),
        RawConnection.prefix(1 << 31, 0),
        RawConnection.prefix(8, 0) + b"\xc1" * 8,
        RawConnection.framed({"kind": "infer", "request": "r"}),
        RawConnection.framed({"kind": "reboot"}),
        RawConnection.framed(_infer_message(surplus=1)),
        RawConnection.framed(_infer_message(tensors=[{"name": "x"}] * 5000)),
        RawConnection.framed(
            _infer_message(tensors=[{"name": "x", "element_type": "float32", "shape": [-1, 3]}])
        ),
        RawConnection.framed({"kind": "models"}, b"payload"),
        msgspec.msgpack.encode({"kind": "models"}),
    ]
    with agent.client() as client, ThreadPoolExecutor(1) as pool:
        before = client.status().counters
        asked = pool.submit(lambda: [client.infer("add", x(i))["y"][0, 0] for i in range(300)])
        for content in bad * 3:
            with RawConnection(agent.place.socket) as raw:
                raw.send_bytes(content)
                assert raw.is_closed_by_the_agent() or content is bad[-1]
        for cut in (1, 16, 40):
            with RawConnection(agent.place.socket) as raw:
                raw.send_bytes(RawConnection.framed(_infer_message(), bytes(24))[:cut])
        assert asked.result(30) == [i + 1.0 for i in range(300)]
        counters = client.status().counters
        wrong = "messages not understood"
        assert counters[wrong] - before.get(wrong, 0) == 3 * (len(bad) - 1)
        broken = "connections broken inside a frame"
        assert counters[broken] - before.get(broken, 0) >= 3
        assert "internal errors" not in counters
        # One of each of the two threads that asked.
        wait_until(lambda: client.status().connections <= 2, "all others are closed")


def test_an_enormous_payload_is_refused_before_it_comes(agent: RunningAgent) -> None:
    shape = [2**40, 2**10]
    head = {"name": "x", "element_type": "float32", "shape": shape}
    with RawConnection(agent.place.socket) as raw, agent.client() as client:
        before = client.status().memory_bytes
        raw.send_bytes(RawConnection.framed(_infer_message(tensors=[head]), announced=2**52))
        answer, _ = raw.receive()
        assert answer["kind"] == "failure"
        assert client.infer("add", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
        assert client.status().memory_bytes - before < 32 * 2**20


@pytest.mark.parametrize("side", ["?", *marked_long(["None"])])
def test_sizes_whose_name_says_that_nobody_knows_them_may_differ(
    agent: RunningAgent, shared_place: Place, side: str
) -> None:
    path = doubling(shared_place.folder / "double.onnx", side)
    image = np.arange(-6, 6, dtype=np.float32).reshape(1, 1, 3, 4)
    with agent.client() as client:
        # Also in the parts of the model, whose shapes are others than those planned for.
        client.load(path, shapes={"x": (1, 1, 2, 5)}, subgraphs=2, wait=True)
        for x_in in (image, np.ones((2, 1, 5, 2), np.float32)):
            y = client.infer("double", {"x": x_in})["y"]
            np.testing.assert_array_equal(y, 2 * np.maximum(x_in, 0))
        assert client.model("double").inputs[0].dims == ("N", 1, None, None)
        client.unload("double")


def test_sizes_of_one_name_must_be_equal(agent: RunningAgent, shared_place: Place) -> None:
    with agent.client() as client:
        client.load(doubling(shared_place.folder / "double.onnx", "side"))
        with pytest.raises(InputMismatch, match=r"with side = 3 as in the inputs before it"):
            client.infer("double", {"x": np.ones((1, 1, 3, 4), np.float32)})
        client.unload("double")
