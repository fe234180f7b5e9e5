"""What is measured of a link is what the link gives, each way."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from edge_agent.agent import gauging
from edge_agent.agent.gauging import (
    AGAIN_S,
    EVERY_S,
    FIRST_S,
    REST_S,
    STEPS,
    TELL_S,
    WEIGHT_BYTES,
    Answer,
    Gauge,
)
from edge_agent.errors import PeerLost
from edge_agent.wire.contents import MAX_PIECE_BYTES
from tests.agent.made_peers import Devices, all_relayed, status_of
from tests.agent.test_contents import fetched, offered
from tests.system.running import wait_until

PIECE = memoryview(b"piece")


class MadeUp:
    """A clock that goes when it is told to. Stands for the module."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep_s(self, duration_s: float) -> None:
        self.now_s += duration_s


class Link:
    """Answers when it is told to, in a time of its own."""

    def __init__(self) -> None:
        self.clock = MadeUp()
        self.asked: list[tuple[int, Answer]] = []
        self.measured: list[float] = []

    def ask(self, length_bytes: int, answer: Answer) -> None:
        self.asked.append((length_bytes, answer))

    def answer(self, every_s: float) -> None:
        """All that was asked, one piece after the other."""
        asked, self.asked = self.asked, []
        for number, (_, answer) in enumerate(asked):
            if number:
                self.clock.sleep_s(every_s)
            answer(PIECE)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    made = Link()
    monkeypatch.setattr(gauging, "clock", made.clock)
    return made


def test_a_slow_link_is_asked_for_little(link: Link) -> None:
    gauge = Gauge(link.ask, link.measured.append, 0.0)
    gauge.tick(FIRST_S - 0.01)
    assert link.asked == []
    gauge.tick(FIRST_S)
    gauge.tick(FIRST_S)
    assert [size for size, _ in link.asked] == [8192, 8192]
    link.answer(0.05)
    assert link.asked == []
    (found,) = link.measured
    assert found == pytest.approx(8192 / 0.05)
    assert gauge.bytes_per_s == found


def test_a_fast_link_is_asked_for_more_and_then_believed(link: Link) -> None:
    gauge = Gauge(link.ask, link.measured.append, 0.0)
    gauge.tick(FIRST_S)
    for count, size in STEPS:
        assert [asked for asked, _ in link.asked] == [size] * count
        assert link.measured == []
        link.answer(0.001)
    (found,) = link.measured
    assert found == pytest.approx(7 * STEPS[-1][1] / 0.007)


def test_it_is_measured_again_after_a_while_and_soon_after_a_failure(link: Link) -> None:
    gauge = Gauge(link.ask, link.measured.append, 0.0)
    gauge.tick(FIRST_S)
    link.answer(0.04)
    now_s = link.clock.monotonic_s()
    gauge.tick(now_s + EVERY_S - 1)
    assert link.asked == []
    gauge.tick(now_s + EVERY_S + 1)
    for _, answer in link.asked:
        answer(PeerLost("gone"))
    assert len(link.measured) == 1
    link.asked.clear()
    now_s = link.clock.monotonic_s()
    gauge.tick(now_s + AGAIN_S - 1)
    assert link.asked == []
    gauge.tick(now_s + AGAIN_S + 1)
    assert len(link.asked) == 2


def test_what_comes_of_a_connection_before_is_not_counted(link: Link) -> None:
    gauge = Gauge(link.ask, link.measured.append, 0.0)
    gauge.tick(FIRST_S)
    before = link.asked.copy()
    gauge.begin_anew(10.0)
    for _, answer in before:
        answer(PIECE)
    assert link.measured == []
    link.asked.clear()
    gauge.tick(10.0 + FIRST_S)
    link.answer(0.04)
    assert len(link.measured) == 1


def flow(gauge: Gauge, link: Link, count: int, every_s: float) -> None:
    """So many pieces of content come without a pause, and then one behind which there is none."""
    for _ in range(count):
        gauge.came(MAX_PIECE_BYTES, is_pressed=True)
        link.clock.sleep_s(every_s)
    gauge.came(MAX_PIECE_BYTES, is_pressed=False)


@pytest.fixture
def gauge(link: Link) -> Gauge:
    """Of a link that a probe found to carry about 12 MB/s."""
    made = Gauge(link.ask, link.measured.append, 0.0)
    made.tick(FIRST_S)
    while link.asked:
        link.answer(0.016)
    assert made.bytes_per_s is not None
    return made


def test_little_content_tells_nothing(gauge: Gauge, link: Link) -> None:
    before = gauge.bytes_per_s
    flow(gauge, link, 6, 0.05)
    assert gauge.bytes_per_s == before


def test_content_that_comes_corrects_what_is_known_by_its_share_of_the_bytes(
    gauge: Gauge, link: Link
) -> None:
    before = gauge.bytes_per_s
    assert before is not None
    flow(gauge, link, 12, 0.002)
    count = 11 * MAX_PIECE_BYTES
    want = (WEIGHT_BYTES + count) / (WEIGHT_BYTES / before + 11 * 0.002)
    assert gauge.bytes_per_s == pytest.approx(want)
    # The peer is told, and that is all that is asked: a probe would find the same.
    gauge.tick(link.clock.monotonic_s() + TELL_S)
    assert link.measured[-1] == gauge.bytes_per_s
    gauge.tick(link.clock.monotonic_s() + EVERY_S - 1)
    assert link.asked == []
    assert len(link.measured) == 2


def test_where_nothing_is_known_content_tells_all(link: Link) -> None:
    gauge = Gauge(link.ask, link.measured.append, 0.0)
    flow(gauge, link, 8, 0.01)
    assert gauge.bytes_per_s == pytest.approx(MAX_PIECE_BYTES / 0.01)


def test_content_that_comes_slowly_is_reason_for_a_probe_when_it_has_come(
    gauge: Gauge, link: Link
) -> None:
    before = gauge.bytes_per_s
    assert before is not None
    flow(gauge, link, 8, 0.08)
    assert gauge.bytes_per_s is not None
    assert gauge.bytes_per_s < before
    now_s = link.clock.monotonic_s()
    gauge.tick(now_s + AGAIN_S)
    assert [size for size, _ in link.asked] == [8192, 8192]
    while link.asked:
        link.answer(0.016)
    assert gauge.bytes_per_s == pytest.approx(before)


def test_there_is_no_probe_while_content_comes(link: Link) -> None:
    gauge = Gauge(link.ask, link.measured.append, 0.0)
    gauge.came(MAX_PIECE_BYTES, is_pressed=True)
    now_s = link.clock.monotonic_s()
    gauge.tick(now_s)
    assert link.asked == []
    gauge.tick(now_s + REST_S)
    assert len(link.asked) == 2


def test_content_between_devices_tells_what_the_link_gives(
    made: Devices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No probe is needed: there is none here."""
    monkeypatch.setattr(gauging, "FIRST_S", 1000.0)
    one, two = made.start("one"), made.start("two", listens=False)
    with all_relayed(one, two) as (_, _, bulk):
        bulk.to_client.bytes_per_s = 8_000_000
        numbers = itertools.count()

        def is_measured() -> bool:
            # Again, until nothing else on this device kept it waiting.
            content = next(numbers).to_bytes(4 << 20, "big")
            sha256 = offered(one, two, tmp_path, content)
            assert fetched(two, one, tmp_path / "to", sha256, len(content)) == content
            ours, theirs = status_of(two, "one"), status_of(one, "two")
            found = (ours.receive_bytes_per_s, theirs.send_bytes_per_s)
            return all(got is not None and 6e6 < got < 10e6 for got in found)

        wait_until(is_measured, "both know")


def test_each_device_learns_what_the_link_gives_each_way(
    made: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauging, "EVERY_S", 0.2)
    one, two = made.start("one"), made.start("two", listens=False)
    with all_relayed(one, two) as (_, _, bulk):
        bulk.to_target.bytes_per_s, bulk.to_client.bytes_per_s = 300_000, 3_000_000

        def is_measured() -> bool:
            ours, theirs = status_of(one, "two"), status_of(two, "one")
            wanted = (
                (ours.receive_bytes_per_s, 300_000),
                (theirs.send_bytes_per_s, 300_000),
                (ours.send_bytes_per_s, 3_000_000),
                (theirs.receive_bytes_per_s, 3_000_000),
            )
            return all(got is not None and 0.8 * w < got < 1.25 * w for got, w in wanted)

        wait_until(is_measured, "all of it is known")
