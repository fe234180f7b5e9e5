"""The benchmark of streams: what it is asked, what its ends do, and how its figures are made."""

from __future__ import annotations

import io
import json
import runpy
import threading
from pathlib import Path
from typing import Any

import pytest

import lab
from bench.ends import Sent
from bench.streamed import EndSpec, opened, serve, window_bytes, window_tensors

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench_stream"
KIB, MIB = 1 << 10, 1 << 20
RUN = 3
"""Tensors."""


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(TOOL))


def test_all_rows_are_measured_unless_some_are_named(tool: dict[str, Any]) -> None:
    options, rows, cores = tool["parsed"](["--cores", "1,0", "--budget", "7", "--json"])
    assert [row.name for row in rows] == [row.name for row in tool["ROWS"]]
    assert (cores, options.budget_s, options.is_json) == ((1, 0), 7.0, True)
    _, rows, _ = tool["parsed"](["--cores", "0,1", "--rows", "1Gbit", "plain:64KiB"])
    names = ["plain:64KiB", "1Gbit:256KiB", "1Gbit:1MiB", "1Gbit:4MiB", "1Gbit:16MiB"]
    assert [row.name for row in rows] == names


@pytest.mark.parametrize("cores", ["0", "0,0", "0,1,2", "0,x", ""])
def test_each_device_has_a_core_of_its_own(
    tool: dict[str, Any], cores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})
    with pytest.raises(SystemExit) as ended:
        tool["parsed"](["--cores", cores])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        ("plain:64KiB", 0.6),
        ("plain:256KiB", None),
        ("plain:1MiB", 0.9),
        ("plain:16MiB", 0.9),
        ("1Gbit:256KiB", None),
        ("1Gbit:1MiB", 0.97),
        ("100Mbit/20ms:1MiB", 0.97),
    ],
)
def test_bars_depend_on_size_and_link(tool: dict[str, Any], name: str, bar: float | None) -> None:
    (row,) = [row for row in tool["ROWS"] if row.name == name]
    assert row.bar == bar


@pytest.mark.parametrize(
    ("name", "quiet_rounds", "is_met"),
    [
        ("plain:1MiB", 6, True),
        ("plain:1MiB", 5, None),
        ("plain:256KiB", 9, None),
        ("1Gbit:1MiB", 0, True),
        ("1Gbit:256KiB", 9, None),
    ],
)
def test_beside_others_a_row_that_the_processor_limits_is_not_judged(
    tool: dict[str, Any], name: str, quiet_rounds: int, is_met: bool | None
) -> None:
    (row,) = [row for row in tool["ROWS"] if row.name == name]
    cells = tool["_judged"](row, {"bar": 0.0, "is_met": True}, quiet_rounds)
    assert cells == {"bar": row.bar, "is_met": is_met}


def test_figures_are_medians_over_runs(tool: dict[str, Any]) -> None:
    class Some:
        size_bytes = 10**6

        def send(self, count: int, rooms: int) -> Sent:
            assert (count, rooms) == (100, 4)
            return Sent(took_s=next(took_s), send_s=0.02, receive_s=0.03)

    took_s = iter((0.1, 0.2, 5.0))
    way = tool["Way"](Some(), 100, rooms=4)
    assert [way.run_s() for _ in range(3)] == [0.1, 0.2, 5.0]
    assert way.mb_per_s == pytest.approx(500)
    assert way.per_gb_s(lambda sent: sent.receive_s) == pytest.approx(0.3)


def test_without_a_lab_it_ends_with_one_line(
    tool: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_: lab.Lab) -> None:
        raise lab.LabError("not root")

    monkeypatch.setattr(lab.Lab, "make", refused)
    monkeypatch.setattr("sys.argv", ["bench_stream", "--cores", "0,1", "--rows", "plain:1MiB"])
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert tool["main"]() == 2
    assert capsys.readouterr().err == "tools/bench_stream: not root\n"


def test_as_many_tensors_are_kept_as_a_window_takes() -> None:
    for size in (64 * KIB, MIB, 16 * MIB):
        count = window_tensors(size)
        assert count >= 4
        assert count * size < window_bytes(size) <= max(8 * MIB, 4 * (size + 4096))


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("is_raw", [True, False])
def test_what_one_end_sends_the_other_one_counts(is_raw: bool, is_encrypted: bool) -> None:
    size = 8 * KIB
    there = EndSpec(
        is_raw=is_raw, sends=False, host="127.0.0.1", size_bytes=size, is_encrypted=is_encrypted
    )
    commands = "".join(json.dumps({"count": RUN, "rooms": rooms}) + "\n" for rooms in (1, 4))
    said = {True: io.StringIO(), False: io.StringIO()}
    with opened(there) as receiver:
        here = EndSpec(
            is_raw=is_raw, sends=True, host="127.0.0.1", port=receiver.port, size_bytes=size,
            is_encrypted=is_encrypted,
        )  # fmt: skip
        with opened(here) as sender:
            sending = threading.Thread(
                target=serve, args=(sender, True, io.StringIO(commands), said[True])
            )
            sending.start()
            serve(receiver, False, io.StringIO(commands), said[False])
            sending.join()
    port, *received = map(json.loads, said[False].getvalue().splitlines())
    assert port == receiver.port
    assert all(answer["took_s"] > 0 and answer["processor_s"] > 0 for answer in received)
    _, *sent = map(json.loads, said[True].getvalue().splitlines())
    assert [answer for answer in sent if answer == "waiting"] == ["waiting"] * 2
    assert len(received) == len(sent) / 2 == 2
