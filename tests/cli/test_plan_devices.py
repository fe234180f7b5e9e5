"""`plan --devices`: from a model file and device profiles to what is printed and written."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent import clock
from edge_agent.cli.main import main
from edge_agent.cli.output import PatientProgress
from edge_agent.cli.plan_flow import step_by_step
from tests.devices_made import device
from tests.profile_files.made_profiles import MODEL, WHOLE, changed
from tests.system.made_models import adding, convolving

Shown = pytest.CaptureFixture[str]
SVG = "{http://www.w3.org/2000/svg}"
QUICK = ('peak.float32 = { value = "76.8 GFLOP/s"', 'peak.float32 = { value = "768 GFLOP/s"')


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return convolving(tmp_path / "net.onnx", blocks=6, channels=64)


@pytest.fixture
def boards(tmp_path: Path) -> tuple[str, str]:
    """`slow` and `fast`: the latter does ten times the operations."""
    for name, text in (("slow", WHOLE), ("fast", changed(*QUICK))):
        (tmp_path / f"{name}.toml").write_text(text.replace('id = "board-1"', f'id = "{name}"'))
    return str(tmp_path / "slow.toml"), str(tmp_path / "fast.toml")


def planned(net: Path, boards: tuple[str, str], *further: str) -> list[str]:
    return ["plan", str(net), "--devices", *boards, *further]


def told(capsys: Shown) -> dict[str, dict[str, object]]:
    """The plans of `--json`, by target."""
    shown = json.loads(capsys.readouterr().out)
    return {one["distribution"]["target"]: one for one in shown["plans"]}


def test_every_target_has_a_line_with_all_metrics(
    net: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    assert main(planned(net, boards, "--link", "slow-fast=1Gbit,0.1ms")) == 0
    shown = capsys.readouterr()
    title, *rows = shown.out.splitlines()
    assert title.split()[:3] == ["for", "latency", "ms"]
    assert [row.split()[0] for row in rows[:5]] == [
        *("latency", "throughput", "energy", "memory", "bytes"),
    ]
    assert "J, modelled" in title
    assert "optimal" in rows[0]
    assert rows[-1] == "Times are estimated from device profiles, not measured, of slow, fast."


def test_no_energy_is_told_without_being_called_modelled(
    net: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    link = ("--link", "slow-fast=1Gbit,0.1ms", "--target", "energy")
    assert main(planned(net, boards, *link, "--explain")) == 0
    assert main(planned(net, boards, *link, "--bound", "energy=0.000001mJ")) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "Not used: " in told
    assert "beyond reach: energy of at most" in told
    assert told.count(" J per request (modelled)") >= 5
    # Other than with these words only in the title of the table's column.
    assert re.findall(r"J\b(?! per request \(modelled\)).{10}", told) == ["J, modelled"]


def test_a_faster_board_over_a_good_link_does_the_work_and_over_a_bad_one_does_not(
    net: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    used = []
    for link in ("slow-fast=10Gbit,1us", "slow-fast=1Mbit,100ms"):
        assert main(planned(net, boards, "--link", link, "--target", "latency", "--json")) == 0
        steps = json.loads(capsys.readouterr().out)["plans"][0]["distribution"]["routes"][0][
            "steps"
        ]
        used.append({step["device"] for step in steps})
    assert "fast" in used[0]
    assert used[1] == {"slow"}


def test_without_a_link_the_owner_is_alone_and_that_is_said(
    net: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    assert main(planned(net, boards, "--target", "latency", "--explain")) == 0
    shown = capsys.readouterr()
    assert "there is no --link, so only slow can be used" in shown.err
    assert "\nNot used:\n  fast: " in shown.out
    assert main(planned(net, boards, "--target", "latency", "--owner", "fast")) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("optimal  fast")


def test_bans_and_bounds_are_kept(net: Path, boards: tuple[str, str], capsys: Shown) -> None:
    link = ("--link", "all=10Gbit,1us", "--target", "latency", "--json")
    assert main(planned(net, boards, *link, "--ban", "fast")) == 0
    routes = json.loads(capsys.readouterr().out)["plans"][0]["distribution"]["routes"]
    assert {s["device"] for r in routes for s in r["steps"]} == {"slow"}
    assert main(planned(net, boards, *link, "--bound", "bytes=0B")) == 0
    assert told(capsys)["latency"]["distribution"]["metrics"]["wire_bytes"] == 0  # type: ignore[index]


def test_nodes_run_where_their_names_are_pinned_and_the_others_where_they_are_quicker(
    net: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    link = ("--link", "all=10Gbit,1us", "--target", "latency", "--owner", "fast", "--explain")
    where = []
    for pin in ((), ("--pin", "c[23]=slow/cpu")):
        assert main(planned(net, boards, *link, *pin)) == 0
        shown = capsys.readouterr().out
        ran = re.findall(r"(\w+/\w+)/\S+ runs segments? [0-9-]+, nodes? (\d+)-(\d+)", shown)
        where.append([(unit, int(start), int(last)) for unit, start, last in ran])
    # A convolution and a Relu for each block: c2 and c3 are nodes 4 and 6.
    assert where == [
        [("fast/cpu", 0, 11)],
        [("fast/cpu", 0, 3), ("slow/cpu", 4, 6), ("fast/cpu", 7, 11)],
    ]


def test_a_bound_on_another_target_changes_the_plan(
    net: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    link = ("--link", "all=10Gbit,1us", "--target", "energy", "--json")
    found = []
    for bound in ((), ("--bound", "latency=12ms")):
        assert main(planned(net, boards, *link, *bound)) == 0
        found.append(told(capsys)["energy"]["distribution"]["metrics"])  # type: ignore[index]
    free, kept = found
    assert free["latency_s"] > 0.012 >= kept["latency_s"]
    assert free["energy_joules"] < kept["energy_joules"]


def test_statistics_slow_a_device_down(
    net: Path, boards: tuple[str, str], tmp_path: Path, capsys: Shown
) -> None:
    (tmp_path / "now.toml").write_text("[slow.slowdown]\ncpu = 2.0\n")
    alone = ("--devices", boards[0], "--target", "latency", "--json")
    took = []
    for further in ((), ("--stats", str(tmp_path / "now.toml"))):
        assert main(["plan", str(net), *alone, *further]) == 0
        shown = json.loads(capsys.readouterr().out)
        took.append(shown["plans"][0]["distribution"]["metrics"]["latency_s"])
    assert took[1] == pytest.approx(2 * took[0])


def test_a_device_that_is_left_out_for_its_battery_is_told_as_short_as_it_may_be(
    net: Path, boards: tuple[str, str], tmp_path: Path, capsys: Shown
) -> None:
    now = tmp_path / "now.toml"
    link = ("--link", "all=10Gbit,1us", "--target", "latency", "--stats", str(now))
    text = "its battery is at 19.9 %, and below 20 % a device does no work for others"
    for battery, is_spared in (("0.199", True), ("0.2", False), ("0.1\ncharging = true", False)):
        now.write_text(f"[fast]\nbattery = {battery}\n")
        assert main(planned(net, boards, *link)) == 0
        assert (f"fast is left out: {text}." in capsys.readouterr().out) is is_spared
        assert main(planned(net, boards, *link, "--json")) == 0
        shown = json.loads(capsys.readouterr().out)["devices"]
        assert [one["spared_because"] for one in shown] == [None, text if is_spared else None]
    now.write_text("[slow]\nbattery = 0.1\n")  # the owner computes what it has itself
    assert main(planned(net, boards, *link)) == 0
    assert "left out" not in capsys.readouterr().out


def test_what_cannot_be_had_is_said_with_what_is_missing_and_fails(
    net: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    assert main(planned(net, boards, "--bound", "latency=1us", "--target", "latency")) == 1
    shown = capsys.readouterr().out
    assert shown.startswith(
        "No distribution for latency: beyond reach: latency of at most 0.001 ms"
    )


def test_equal_questions_have_equal_answers(
    net: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    asked = planned(net, boards, "--link", "all=1Gbit,0.1ms", "--json")
    answers = []
    for _ in range(2):
        assert main(asked) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_json_has_the_legs_the_loads_and_what_was_compared(
    net: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    assert main(planned(net, boards, "--link", "all=10Gbit,1us", "--json")) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["owner"], len(shown["links"]), shown["infeasible"]) == ("slow", 2, [])
    assert shown["is_energy_modelled"] is True
    for one in shown["plans"]:
        assert one["resources"][0]["busy_fraction"] == 1.0
        assert one["alone"]["metrics"]["latency_s"] > 0
        for route in one["routes"]:
            ends = [leg["start_s"] + leg["took_s"] for leg in route["legs"]]
            assert max(ends) == pytest.approx(route["latency_s"])


def test_a_front_is_printed_and_drawn_with_a_point_for_each(
    net: Path, boards: tuple[str, str], tmp_path: Path, capsys: Shown
) -> None:
    drawing = tmp_path / "front.svg"
    further = ("--link", "all=1Gbit,0.1ms", "--pareto", "--svg", str(drawing), "--effort", "0.2")
    assert main(planned(net, boards, *further)) == 0
    rows = [r for r in capsys.readouterr().out.splitlines() if r.split()[0].isdigit()]
    root = ElementTree.parse(drawing).getroot()
    points = [c for c in root.iter(f"{SVG}circle") if c.get("class") == "point"]
    assert len(points) == len(rows) > 1
    assert [p for p in root.iter(f"{SVG}polygon") if p.get("class") == "alone"]


def test_timelines_are_drawn_or_traced_with_the_times_of_the_legs(
    net: Path, boards: tuple[str, str], tmp_path: Path, capsys: Shown
) -> None:
    link = ("--link", "all=10Gbit,1us", "--target", "latency", "--json")
    assert main(planned(net, boards, *link, "--timeline", str(tmp_path / "t.json"))) == 0
    (route,) = json.loads(capsys.readouterr().out)["plans"][0]["routes"]
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    shown = sorted((e["ts"], e["dur"]) for e in events if e["ph"] == "X")
    assert shown == sorted((leg["start_s"] * 1e6, leg["took_s"] * 1e6) for leg in route["legs"])
    assert main(planned(net, boards, *link, "--timeline", str(tmp_path / "t.svg"))) == 0
    rects = ElementTree.parse(tmp_path / "t.svg").getroot().iter(f"{SVG}rect")
    bars = [rect for rect in rects if rect.get("class") in ("run", "transfer")]
    assert len(bars) == len(route["legs"])


def test_one_profile_may_stand_for_several_devices(
    net: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    named = [f"a={boards[0]}", f"b={boards[0]}", "c=raspberry-pi-5-8gb"]
    further = ("--link", "all=10Gbit,1us", "--target", "throughput", "--json")
    assert main(["plan", str(net), "--devices", *named, *further]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [device["id"] for device in shown["devices"]] == ["a", "b", "c"]


def test_measured_times_that_do_not_fit_are_told_and_not_used(
    net: Path, tmp_path: Path, capsys: Shown
) -> None:
    own = hashlib.sha256(net.read_bytes()).hexdigest()
    (tmp_path / "board.toml").write_text(WHOLE.replace(MODEL, own))
    asked = ["plan", str(net), "--devices", str(tmp_path / "board.toml"), "--target", "latency"]
    assert main([*asked, "--explain"]) == 0
    shown = capsys.readouterr()
    told = "the measured times of this model on cpu are not used: they are of 2 segments"
    assert shown.err.startswith(f"board-1: {told} that begin at nodes 0, 12, and here are 0, ")
    assert "or measure again with `edge-agent devices --export --model`" in shown.err
    assert told in " ".join(shown.out.split())
    (tmp_path / "board.toml").write_text(WHOLE)
    assert main([*asked, "--explain"]) == 0
    shown = capsys.readouterr()
    assert "measured times of this model" not in shown.out + shown.err


def test_energy_is_left_out_or_refused_where_no_power_is_known(
    net: Path, tmp_path: Path, capsys: Shown
) -> None:
    text = "\n".join(line for line in WHOLE.splitlines() if not line.startswith("busy = "))
    (tmp_path / "dark.toml").write_text(text)
    asked = ["plan", str(net), "--devices", str(tmp_path / "dark.toml")]
    assert main(asked) == 0
    shown = capsys.readouterr()
    assert "energy is left out" in shown.err
    assert not [row for row in shown.out.splitlines() if row.startswith("energy")]
    assert main([*asked, "--target", "energy"]) == 2
    assert "energy: it is not known what board-1 draws" in capsys.readouterr().err
    assert main([*asked, "--target", "latency", "--explain"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "requests per second, its energy is not known, " in told
    assert "No power is known of board-1: energies are not known." in told
    assert told.endswith("; its power is not known")
    assert "0 J" not in told
    drawing = tmp_path / "front.svg"
    assert main([*asked, "--pareto", "--effort", "0.2", "--svg", str(drawing)]) == 0
    assert "; memory " in drawing.read_text()
    assert "energy" not in drawing.read_text()


def test_drawings_go_through_links_and_devices(
    net: Path, boards: tuple[str, str], tmp_path: Path, capsys: Shown
) -> None:
    (tmp_path / "link").symlink_to("front")
    (tmp_path / "link.json").symlink_to("trace")
    null, full = device(tmp_path / "null", 3), device(tmp_path / "full", 7)
    alone = ("--target", "latency", "--timeline")
    assert main(planned(net, boards, *alone, str(null))) == 0
    assert main(planned(net, boards, *alone, str(tmp_path / "link.json"))) == 0
    assert json.loads((tmp_path / "trace").read_text())["traceEvents"]
    front = ("--pareto", "--effort", "0.2", "--svg")
    assert main(planned(net, boards, *front, str(tmp_path / "link"))) == 0
    assert ElementTree.parse(tmp_path / "front").getroot().tag == f"{SVG}svg"
    capsys.readouterr()
    assert main(planned(net, boards, *front, str(full))) == 12
    assert f"{full}: cannot be written: No space left on device" in capsys.readouterr().err
    assert null.is_char_device()
    assert full.is_char_device()


def test_a_drawing_takes_the_place_of_nothing_that_is_read(
    net: Path, boards: tuple[str, str], tmp_path: Path, capsys: Shown
) -> None:
    stats = tmp_path / "now.json"
    stats.write_text("{}")
    model = tmp_path / "model.svg"
    model.write_bytes(net.read_bytes())
    profile = tmp_path / "board.svg"
    profile.write_text("no profile")
    (tmp_path / "other.svg").symlink_to(model)
    before = model.read_bytes()
    asked = planned(model, boards, "--pareto", "--svg")
    for name in ("model.svg", "other.svg"):
        assert main([*asked, str(tmp_path / name)]) == 2
        assert "the plan is made of that file, which would be lost" in capsys.readouterr().err
    assert model.read_bytes() == before
    assert main(planned(net, boards, "--stats", str(stats), "--timeline", str(stats))) == 2
    assert stats.read_text() == "{}"
    for path in (profile, profile.rename(tmp_path / "a=b.svg")):
        path.write_text("no profile")
        read = ["plan", str(net), "--devices", f"x={path}", "--timeline", str(path)]
        assert main(read) == 2
        assert "which would be lost; name another one" in capsys.readouterr().err
        assert path.read_text() == "no profile"


def test_with_json_no_drawing_goes_to_standard_output(
    net: Path, boards: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(planned(net, boards, "--json", "--timeline", "/dev/stdout")) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "with --json, standard output is one JSON document; name a file" in shown.err


@pytest.mark.parametrize(
    ("further", "message"),
    [
        (["--svg", "x.svg"], "--svg: draws a Pareto set, so it goes with --pareto"),
        (["--pareto", "--timeline", "x.svg"], "--timeline: draws plans for targets, so --pareto"),
        (["--timeline", "x.png"], "--timeline x.png: want a file that ends in .svg or .json"),
        (["--pareto", "--target", "bytes"], "--pareto: got the target bytes alone, want two"),
        (["--routes", "0"], "--routes: got 0, want at least 1"),
        (["--effort", "nan"], "--effort: got nan, want seconds above 0"),
        (["--socket", "x"], "--socket: no agent is asked"),
        (
            ["--owner", "fats"],
            "--owner fats: is none of the devices: there are slow, fast; did you",
        ),
        (["--pareto", "--svg", ""], "--svg: got an empty text, want a name or value"),
        (["--timeline", ""], "--timeline: got an empty text, want a name or value"),
        (["--timeline", "no/such/x.svg"], "there is no such folder; make it first"),
        (["--link", "slow-fst=1Gbit,1ms"], 'got device "fst", which is not there'),
        (["--pin", "r*=lab"], 'got device "lab", which is not there: there are slow, fast'),
        (
            ["--pin", "c0=fast", "--ban", "fast"],
            "--pin c0=fast: fast is banned by --ban fast; leave one of the two out",
        ),
        (
            ["--pin", "c0=fast", "--ban", "fast/cpu", "slow", "fast/npu"],
            "--pin c0=fast: fast is banned by --ban fast/cpu fast/npu; leave one of",
        ),
        (
            ["--pin", "c0=fast/cpu", "--ban", "fast"],
            "--pin c0=fast/cpu: fast/cpu is banned by --ban fast; leave one",
        ),
        (["--stats", "none.toml"], "--stats none.toml: cannot be read: No such file"),
        (["--devices", "{slow}"], "slow is there already; give it an id of its own"),
        (["--devices", "none.toml"], "none.toml: no such file, want a device profile"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_cure(
    net: Path, boards: tuple[str, str], further: list[str], message: str, capsys: Shown
) -> None:
    given = [word.replace("{slow}", boards[0]) for word in further]
    assert main(planned(net, boards, *given)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "further",
    [["--link", "a-b=1Gbit,1ms"], ["--ban", "a"], ["--svg", "x.svg"], ["--effort", "1"]],
)
def test_options_of_devices_are_refused_for_a_loaded_model(
    further: list[str], capsys: Shown
) -> None:
    assert main(["plan", "net", *further]) == 2
    assert f"{further[0]}: goes with --devices" in capsys.readouterr().err


def test_a_model_that_is_no_file_or_has_open_sizes_is_told(
    boards: tuple[str, str], tmp_path: Path, capsys: Shown
) -> None:
    assert main(["plan", str(tmp_path / "no.onnx"), "--devices", boards[0]]) == 4
    assert "no such file; name a model file" in capsys.readouterr().err
    asked = ["plan", str(adding(tmp_path / "m.onnx")), "--devices", boards[0]]
    assert main(asked) == 0
    assert "open dimensions were tried" in capsys.readouterr().err
    assert main([*asked, "--shape", "x=7x3"]) == 0


@pytest.mark.zoo
def test_a_real_model_over_real_boards(zoo: dict[str, Path], tmp_path: Path, capsys: Shown) -> None:
    if "shufflenet" not in zoo:
        pytest.skip("no shufflenet: run tools/zoo shufflenet")
    boards = ["lab=raspberry-pi-5-8gb", "jetson-orin-nano-8gb", "lattepanda-mu-n100-8gb"]
    further = ["--link", "all=1Gbit,0.3ms", "--json", "--timeline", str(tmp_path / "t.svg")]
    assert main(["plan", str(zoo["shufflenet"]), "--devices", *boards, *further]) == 0
    plans = told(capsys)
    assert len(plans) == 5
    for target, plan in plans.items():
        alone = plan["alone"]["metrics"]  # type: ignore[index]
        mine = plan["distribution"]["metrics"]  # type: ignore[index]
        if target == "throughput":
            assert mine["throughput_per_s"] >= alone["throughput_per_s"] * (1 - 1e-9)
        if target == "latency":
            assert mine["latency_s"] <= alone["latency_s"] * (1 + 1e-9)
    ElementTree.parse(tmp_path / "t.svg")


def test_what_is_quick_tells_nothing_of_itself(capsys: Shown) -> None:
    with PatientProgress(patience_s=60.0) as progress:
        progress.say("reading")
    assert capsys.readouterr().err == ""


def test_what_is_slow_tells_where_it_is(capsys: Shown) -> None:
    with PatientProgress(patience_s=0.0) as progress:
        progress.say("reading")
        told = _once_shown(capsys, "reading")
        progress.say("planning", 0.5)
    assert told.endswith("  0% reading\n")
    assert capsys.readouterr().err == " 50% planning\n"


def _once_shown(capsys: Shown, what: str) -> str:
    """What stands on standard error as soon as it holds `what`."""
    shown = ""
    until_s = clock.monotonic_s() + 10.0
    while what not in shown and clock.monotonic_s() < until_s:
        shown += capsys.readouterr().err
    return shown


def test_each_step_of_a_pareto_set_is_a_line_where_there_is_no_terminal(capsys: Shown) -> None:
    with PatientProgress(patience_s=0.0) as progress:
        progress.say("planning for latency, energy")
        report = step_by_step(progress, "planning for latency, energy")
        _once_shown(capsys, "planning for")
        report(0.05)
        report(0.1)
        report(1.0)
    assert capsys.readouterr().err.splitlines() == [
        "  5% planning for latency, energy, step 2",
        " 10% planning for latency, energy, step 3",
    ]


@pytest.mark.long
def test_a_long_search_for_a_pareto_set_tells_how_far_it_is(
    tmp_path: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    net = convolving(tmp_path / "deep.onnx", blocks=12, channels=64)
    slow, fast = boards
    more = [f"{end}{i}={board}" for i in range(5) for end, board in (("s", slow), ("f", fast))]
    link = ("--link", "all=1Gbit,0.1ms", "--effort", "10")
    assert main(["plan", str(net), "--devices", *more, *link, "--pareto"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "%" in line]
    assert len(lines) > 5
    steps = [int(line.split("%")[0]) for line in lines]
    assert steps == sorted(steps)


@pytest.mark.parametrize("model", ["loaded", "net.onnx"])
def test_one_target_makes_no_pareto_set_of_a_loaded_model_either(
    model: str, tmp_path: Path, capsys: Shown
) -> None:
    twice = ["--target", "latency", "--target", "latency", "--pareto"]
    where = ["--socket", str(tmp_path / "none.sock")]
    further = where if model == "loaded" else ["--devices", "raspberry-pi-5-8gb"]
    assert main(["plan", model, *twice, *further]) == 2
    said = "--pareto: got the target latency alone, want two or more --target"
    assert said in capsys.readouterr().err


def test_a_model_without_nodes_is_said_to_have_none(
    tmp_path: Path, boards: tuple[str, str], capsys: Shown
) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    graph = helper.make_graph([], "empty", [value], [value])
    net = tmp_path / "zero.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), net)
    further = ("--link", "slow-fast=1Gbit,0.1ms", "--target", "latency", "--explain")
    assert main(planned(net, boards, *further)) == 0
    assert "runs segment 0, which has no nodes\n" in capsys.readouterr().out
