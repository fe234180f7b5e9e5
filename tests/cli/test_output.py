"""What the commands print, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_agent.cli.main import main
from edge_agent.cli.output import ProgressLine, print_table, size_text
from edge_agent.devices import (
    ComputeUnit,
    Device,
    Keeping,
    Layout,
    RefusedUnit,
    UnitId,
    UnitKind,
)
from edge_agent.errors import BadRequest
from edge_agent.profiles import RatioInterval
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import TensorName
from edge_agent.wire.messages import (
    AskDevices,
    AskModels,
    AskPlan,
    AskStatus,
    ClientMessage,
    Devices,
    Done,
    Infer,
    Load,
    Models,
    Plan,
    PlanInMaking,
    Replan,
    Status,
    Unload,
)
from edge_agent.wire.parts import SpecialisedState
from tests import made_plans
from tests.devices_made import device
from tests.fake_agent import Asked, FakeAgent, doubles, state

PLAN = replace(
    made_plans.PLAN,
    model=ModelId("0" * 64),
    is_plain=True,
    reason="nothing was measured to be faster",
)
DEVICE = Device(
    hostname="board",
    processor="A76",
    cores=(0, 1),
    memory_bytes=4 << 30,
    runtime_version="1.32.0",
    runtime_build="onnxruntime",
    units=(
        ComputeUnit(
            id=UnitId("cpu"),
            kind=UnitKind.CPU,
            provider="CPUExecutionProvider",
            provider_version="1.32.0",
            layouts=(Layout.NCHW, Layout.BLOCKED),
            cores=2,
            memory_bytes=1 << 30,
            keeps=Keeping.GRAPH,
        ),
        ComputeUnit(
            id=UnitId("npu0"),
            kind=UnitKind.NPU,
            provider="NpuExecutionProvider",
            provider_version="2.0",
            layouts=(Layout.NATIVE,),
            cores=0,
            keeps_nothing_because="it wrote no context",
        ),
    ),
    refused=(
        RefusedUnit(
            provider="WebGPU", reason="switched off", remedy="switch it on", unit=UnitId("webgpu")
        ),
        RefusedUnit(provider="CUDA", reason="no driver", remedy="install one"),
    ),
)


class Agent:
    """Has one model; says what the tests want to see printed."""

    def __init__(self) -> None:
        self.models = [state()]
        self.is_planned = True
        self.settings_key = ""

    def __call__(self, asked: Asked) -> None:
        if isinstance(asked.message, Infer):
            doubles(asked)
        elif isinstance(asked.message, AskPlan) and not self.is_planned:
            self.is_planned = True
            asked.fail(BadRequest("no plan yet"))
        else:
            asked.answer(self.reply(asked.message))

    def reply(self, message: ClientMessage) -> Models | Status | Devices | Plan | Done:
        match message:
            case AskStatus():
                return Status(
                    version="0.1.0",
                    pid=4711,
                    uptime_s=12.3,
                    incarnation=3,
                    socket="/run/a.sock",
                    state_folder="/state",
                    models=tuple(self.models),
                    in_flight=1,
                    in_flight_bytes=2048,
                    connections=2,
                    lent=1,
                    counters={"workers lost": 1, "requests refused": 4},
                    memory_bytes=50 << 20,
                    model_disk_bytes=98 << 20,
                    compiled_disk_bytes=200 << 20,
                    max_compiled_disk_bytes=8 << 30,
                    settings_key=self.settings_key,
                )
            case AskDevices():
                return Devices(DEVICE)
            case AskPlan():
                return Plan(PLAN)
            case Unload():
                return Done("unloaded")
            case AskModels() if len(self.models) > 1:
                return Models((self.models.pop(0),))
            case _:
                return Models(tuple(self.models[:1]))


def shown(
    capsys: pytest.CaptureFixture[str], agent: FakeAgent, *arguments: str, code: int = 0
) -> tuple[str, str]:
    assert main([*arguments, "--socket", str(agent.path)]) == code
    out, err = capsys.readouterr()
    return out, err


def test_models_are_a_table_with_their_interfaces(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeAgent(Agent()) as agent:
        out, err = shown(capsys, agent, "models")
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["model", "state", "planning"]
    assert lines[1].split()[:5] == ["m", "serving", "done", "latency", "12"]
    assert lines[3:] == [
        "m: from /models/m.onnx",
        "  input x: float32[N,2]",
        "  output y: float32[N,2]",
    ]
    assert err == ""


def test_models_as_json_hold_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeAgent(Agent()) as agent:
        out, _ = shown(capsys, agent, "models", "--json")
    (model,) = json.loads(out)
    assert (model["name"], model["answered"], model["inputs"][0]["dims"]) == ("m", 12, ["N", 2])


def test_no_models_say_how_to_load_one(capsys: pytest.CaptureFixture[str]) -> None:
    says = Agent()
    says.models = []
    with FakeAgent(says) as agent:
        assert "edge-agent load" in shown(capsys, agent, "models")[0]
        assert shown(capsys, agent, "models", "--json")[0] == "[]\n"


def test_status_shows_counters_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeAgent(Agent()) as agent:
        out, _ = shown(capsys, agent, "status")
        assert json.loads(shown(capsys, agent, "status", "--json")[0])["incarnation"] == 3
    assert out.splitlines()[:6] == [
        "edge-agent 0.1.0, pid 4711, up 12 s",
        "socket /run/a.sock, state in /state, start 3",
        "1 request in flight (2.0 KiB), 2 connections (1 lent to workers), 50.0 MiB of memory",
        "on disk: 98.0 MiB of models, 200.0 MiB of compiled subgraphs (at most 8.0 GiB)",
        "requests refused: 4",
        "workers lost: 1",
    ]


def test_devices_show_units_and_why_others_were_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FakeAgent(Agent()) as agent:
        out, _ = shown(capsys, agent, "devices")
        assert json.loads(shown(capsys, agent, "devices", "--json")[0])["hostname"] == "board"
    assert "cores 0, 1; 4.0 GiB of memory" in out
    units = [line.split("  ") for line in out.splitlines() if "ExecutionProvider" in line]
    cpu, npu = ([cell.strip() for cell in unit if cell] for unit in units)
    assert cpu[:4] == ["cpu", "CPU", "CPUExecutionProvider", "1.32.0"]
    assert cpu[4:] == ["2", "1.0 GiB", "NCHW, blocked", "optimised graph"]
    assert npu == ["npu0", "NPU", "NpuExecutionProvider", "2.0", "0", "-", "native", "nothing"]
    assert "npu0 keeps nothing of what it compiles: it wrote no context\n" in out
    assert out.splitlines()[-2:] == [
        "refused webgpu, WebGPU: switched off; switch it on",
        "refused CUDA: no driver; install one",
    ]


def test_a_plan_is_shown_in_short_explained_and_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FakeAgent(Agent()) as agent:
        out, _ = shown(capsys, agent, "plan", "m")
        assert out == 'model "m": plain ONNX Runtime\nnothing was measured to be faster\n'
        assert "nothing was measured" in shown(capsys, agent, "plan", "m", "--explain")[0]
        assert json.loads(shown(capsys, agent, "plan", "m", "--json")[0])["is_plain"] is True


def test_the_plan_for_shapes_is_waited_for_and_shown_with_where_it_flips(
    capsys: pytest.CaptureFixture[str],
) -> None:
    special = replace(
        PLAN, shapes=((TensorName("x"), (4, 2)),), is_specialised=True, reason="the general plan"
    )

    class Making(Agent):
        steps = 0

        def __call__(self, asked: Asked) -> None:
            message = asked.message
            if isinstance(message, AskPlan) and message.shapes is not None:
                assert message.shapes == ((TensorName("x"), (4, 2)),)
                self.steps += 1
                if self.steps == 1:
                    asked.answer(PlanInMaking(0.5, "for 4x2: measuring"))
                else:
                    asked.answer(Plan(special))
            else:
                super().__call__(asked)

    with FakeAgent(Making()) as agent:
        out, err = shown(capsys, agent, "plan", "m", "--shape", "x=4x2")
        assert out == 'model "m" for x[4,2]: plain ONNX Runtime\nthe general plan\n'
        assert err == " 50% for 4x2: measuring\n"
        out, _ = shown(capsys, agent, "plan", "m", "--shape", "x=4x2", "--explain")
        assert "for these shapes alone, x[4,2]" in out
        assert "was not profiled" in out
        out, _ = shown(capsys, agent, "plan", "m", "--shape", "x=4x2", "--json")
        assert sorted(json.loads(out)) == ["flips", "general", "plan"]


def test_the_shapes_with_plans_of_their_own_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = {"reason": "why not", "measured_s": 0.002, "plan": "[0] cpu/NCHW/1t"}
    says = Agent()
    says.models = [
        state(
            specialised=tuple(
                SpecialisedState(
                    shapes=((TensorName("x"), (size, 2)),),
                    share=size / 10,
                    is_serving=size == 6,
                    general_over_plan=RatioInterval(median=1.25, low=1.2, high=1.3, pairs=20),
                    **known,  # type: ignore[arg-type]
                )
                for size in (6, 3)
            ),
            specialising="for 1x2: measuring",
        )
    ]
    with FakeAgent(says) as agent:
        for command in (["models"], ["plan", "m"]):
            lines = shown(capsys, agent, *command)[0].splitlines()
            assert lines[-1] == "being planned: for 1x2: measuring"
            assert lines[-3].split() == [
                "x[6,2]",
                "60%",
                "yes",
                "2",
                "1.250",
                "[0]",
                known["plan"][4:],
            ]
            assert lines[-2].split() == ["x[3,2]", "30%", "no", "2", "1.250", "why", "not"]


def test_a_plan_that_is_still_made_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    says = Agent()
    says.is_planned = False
    says.models = [state(planning="working", progress="measuring"), *[state()] * 5]
    with FakeAgent(says) as agent:
        out, err = shown(capsys, agent, "plan", "m")
    assert "nothing was measured" in out
    assert err == "100% measuring\n"


def test_loading_says_what_serves_and_waiting_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    says = Agent()
    with FakeAgent(says) as agent:
        out, err = shown(capsys, agent, "load", "/m.onnx", "--shape", "x=1x2", "s=")
        assert (out, err) == ('model "m" serving: plain ONNX Runtime\n', "")
        (asked,) = agent.asked
        assert isinstance(asked.message, Load)
        assert asked.message.shapes == (("x", (1, 2)), ("s", ()))
        working = state(planning="working", progress_fraction=0.5, progress="measuring")
        says.models = [working, working, state(), state()]
        out, err = shown(capsys, agent, "load", "/m.onnx", "--wait")
    assert out == 'model "m" serving: plain ONNX Runtime\n'
    assert err == " 50% measuring\n"


def test_waiting_for_a_plan_that_fails_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    says = Agent()
    says.models = [state(planning="failed", progress="no space left")]
    with FakeAgent(says) as agent:
        out, _ = shown(capsys, agent, "replan", "m", "--wait", code=1)
        assert out.splitlines()[1] == "it has no plan: no space left"
        assert agent.asked[0].message == Replan("m")
        shown(capsys, agent, "replan", "m")


def test_waiting_for_a_quarantined_model_ends_with_5(capsys: pytest.CaptureFixture[str]) -> None:
    says = Agent()
    says.models = [state(planning="failed", state="quarantined", progress="it is so and so")]
    with FakeAgent(says) as agent:
        _, err = shown(capsys, agent, "load", "/m.onnx", "--wait", code=5)
    assert err == "edge-agent load: it is so and so\n"


def test_unloading_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeAgent(Agent()) as agent:
        assert shown(capsys, agent, "unload", "m")[0] == 'model "m" is unloaded\n'
        assert json.loads(shown(capsys, agent, "unload", "m", "--json")[0]) == {"unloaded": "m"}


# ---- infer


def test_infer_reads_prints_and_writes_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.array([[1.0, 2.0]], np.float32))
    where = tmp_path / "out.npz"
    with FakeAgent(Agent()) as agent:
        out, err = shown(
            capsys, agent, "infer", "m", "--input", f"x={tmp_path}/x.npy", "--output", str(where),
            "--outputs", "y", "--repeat", "3",
        )  # fmt: skip
        assert [asked.infer.outputs for asked in agent.asked[1:]] == [("y",)] * 3
    assert out == "y: float32[1, 2]\n[[2. 4.]]\n"
    assert err.startswith("3 runs, median ")
    with np.load(where) as written:
        np.testing.assert_array_equal(written["y"], [[2.0, 4.0]])


def test_infer_as_json_names_types_shapes_and_first_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FakeAgent(Agent()) as agent:
        out, _ = shown(capsys, agent, "infer", "m", "--random", "--json", "--seed", "1")
        again, _ = shown(capsys, agent, "infer", "m", "--random", "--json", "--seed", "1")
    got, repeated = json.loads(out), json.loads(again)
    assert (got["outputs"]["y"]["dtype"], got["outputs"]["y"]["shape"]) == ("float32", [1, 2])
    assert got["outputs"] == repeated["outputs"]
    assert got["runs"] == 1


def test_infer_takes_shapes_for_random_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeAgent(Agent()) as agent:
        shown(capsys, agent, "infer", "m", "--random", "--shape", "x=5x2")
        assert agent.asked[-1].infer.tensors[0].shape == (5, 2)
        _, err = shown(capsys, agent, "infer", "m", "--random", "--shape", "x=5x3", code=2)
    assert 'shape of input "x": got [5,3], want float32[N,2]' in err


@pytest.mark.parametrize("dtype", ["complex64", "float16", "bool", "uint64"])
def test_infer_as_json_takes_every_type(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    array = np.array([1, 0]).astype(dtype)
    with FakeAgent(
        lambda asked: (
            asked.result({"y": array})
            if isinstance(asked.message, Infer)
            else asked.answer(Models((state(),)))
        )
    ) as agent:
        out, _ = shown(capsys, agent, "infer", "m", "--random", "--json")
    assert json.loads(out)["outputs"]["y"]["dtype"] == dtype


@pytest.mark.parametrize(
    "content",
    [b"", b"no array", b"PK\x03\x04 no archive", b"\x93NUMPY\x01\x00\xff\xff", b"\x80\x04N."],
)
def test_a_file_that_is_no_array_is_the_users_mistake(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with FakeAgent() as agent:
        _, err = shown(capsys, agent, "infer", "m", "--input", f"x={path}", code=2)
    assert "is no array in .npy format" in err


def test_an_archive_of_arrays_is_not_one_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(2))
    with FakeAgent() as agent:
        _, err = shown(capsys, agent, "infer", "m", "--input", f"x={tmp_path}/x.npz", code=2)
    assert "is no array in .npy format" in err


def test_a_file_that_promises_more_than_memory_holds_is_the_users_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (2**50,)}
        np.lib.format.write_array_header_1_0(file, header)
    with FakeAgent() as agent:
        _, err = shown(capsys, agent, "infer", "m", "--input", f"x={path}", code=2)
    assert "is no array in .npy format" in err


def test_outputs_that_cannot_be_written_end_with_12(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = device(tmp_path / "full.npz", 7)
    with FakeAgent() as agent:
        _, err = shown(capsys, agent, "infer", "m", "--random", "--output", str(full), code=12)
    assert f"{full}: cannot be written: No space left on device; free some space, or name" in err
    assert full.is_char_device()


def test_outputs_go_where_a_link_leads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link.npz").symlink_to("there.npz")
    with FakeAgent() as agent:
        output = ("--output", str(tmp_path / "link.npz"))
        shown(capsys, agent, "infer", "m", "--random", *output, code=0)
    assert (tmp_path / "link.npz").is_symlink()
    with np.load(tmp_path / "there.npz") as found:
        assert list(found) == ["y"]


@pytest.mark.parametrize("where", ["missing/out.npz", "."])
def test_no_model_is_run_for_outputs_that_have_nowhere_to_go(
    tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ("--output", str(tmp_path / where))
    with FakeAgent() as agent:
        _, err = shown(capsys, agent, "infer", "m", "--random", *output, code=2)
    assert ("names a folder" if where == "." else "there is no such folder; make it") in err
    assert not [one for one in agent.asked if isinstance(one, Infer)]


# ---- the pieces


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 << 10, "1.5 MiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_sizes_are_in_the_unit_of_a_person(size_bytes: int | None, text: str) -> None:
    assert size_text(size_bytes) == text


def test_columns_are_as_wide_as_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "long title"), [("much longer", "x"), ("", "y")])
    assert capsys.readouterr().out.splitlines() == [
        "a            long title",
        "much longer  x",
        "             y",
    ]
    print_table(("a",), [])
    assert capsys.readouterr().out == "a\n"


def test_progress_off_a_terminal_is_a_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine()
    for fraction, what in ((0.0, "reading"), (0.1, "reading"), (0.5, "measuring")):
        line.show(fraction, what)
    line.end()
    assert capsys.readouterr().err == "  0% reading\n 50% measuring\n"
