"""`edge-agent devices --export`, with and without an agent, on this machine."""

from __future__ import annotations

import pytest

from edge_agent.errors import AgentUnavailable, UsageError
from edge_agent.profile_files.reading import load
from edge_agent.profiles import HOST_UNIT
from edge_agent.summaries import Arithmetic
from edge_agent.telemetry import host
from tests.system.conftest import StartAgent
from tests.system.running import Place, run_command

_LONG_S = 300.0


@pytest.mark.alone
@pytest.mark.long
def test_the_profile_of_this_device_is_measured_without_an_agent_and_reads_back(
    place: Place,
) -> None:
    file = place.folder / "here.toml"
    ended = run_command(place, "devices", "--export", str(file), timeout_s=_LONG_S)
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"{file}: the profile of ")
    profile = load(file)
    assert profile.memory_bytes.value == host.memory_bytes()
    assert profile.cores == len(host.granted_cores())
    cpu = profile.units[0]
    assert cpu.id == HOST_UNIT
    # Whatever else runs here: more than a calculator, less than a data centre.
    for _, peak in cpu.operations_per_s:
        assert 1e8 < peak.value < 1e14
    assert {arithmetic for arithmetic, _ in cpu.operations_per_s} == {
        Arithmetic.FLOAT32,
        Arithmetic.INT8,
    }
    assert 1e8 < cpu.bandwidth_bytes_per_s.value < 1e13
    assert 1e-8 < cpu.operator_s.value < 1e-3
    assert 1e-7 < cpu.launch_s.value < 1e-1


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.usefixtures("planned")
def test_measured_times_of_a_loaded_model_are_exported_with_its_division(
    start: StartAgent,
) -> None:
    agent = start()
    file = agent.place.folder / "here.toml"
    with agent.client() as client:
        client.wait("net", 60)
        plan = client.plan("net")
    ended = run_command(
        agent.place,
        *("devices", "--export", str(file), "--model", "net", "--json"),
        timeout_s=_LONG_S,
    )
    assert ended.code == 0, ended.err
    assert ended.json["file"] == str(file)
    profile = load(file)
    assert {times.model for times in profile.latency} == {plan.model}
    starts = tuple(segment.nodes[0] for segment in plan.segments)
    assert all(times.starts == starts for times in profile.latency)
    shown = dict(plan.segments[0].times)
    for measured in profile.latency:
        assert shown[measured.times.configuration] == measured.times.segment_s[0]


@pytest.mark.long
def test_what_cannot_be_exported_is_said_before_anything_is_measured(place: Place) -> None:
    file = str(place.folder / "here.toml")
    for arguments, code, text in (
        (("--export", str(place.folder)), UsageError.exit_code, "names a folder, want a file"),
        (("--export", str(place.folder / "no/x.toml")), UsageError.exit_code, "make it first"),
        (("--model", "net"), UsageError.exit_code, "is for --export"),
        (("--export", file, "--model", "net"), AgentUnavailable.exit_code, "needs an agent"),
    ):
        ended = run_command(place, "devices", *arguments)
        assert (ended.code, ended.out) == (code, ""), ended.err
        assert text in ended.err
