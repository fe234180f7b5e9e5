"""How a peer is, from when its heartbeats came, at made-up times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.agent.liveness import Liveness, Patience
from edge_agent.peers import PeerCondition

UP, SLOW = PeerCondition.UP, PeerCondition.SLOW
SILENT, GONE = PeerCondition.SILENT, PeerCondition.GONE
PATIENCE = Patience(beat_s=0.25, silent_s=2.0, gone_s=16.0)
LATE_S = 0.6 * 2.0
# From zero on, so that differences of times are exact.
START_S = 0.0


def heard(patience: Patience = PATIENCE, their_beat_s: float = 0.25) -> Liveness:
    """A peer that was heard at `START_S`."""
    made = Liveness(patience, START_S)
    made.begin(their_beat_s, START_S)
    made.beat(1, None, 0.0, START_S)
    return made


def at(liveness: Liveness, later_s: float) -> PeerCondition:
    liveness.look(START_S + later_s)
    return liveness.condition


def trip(liveness: Liveness, trip_s: float, now_s: float, held_s: float = 0.0) -> None:
    """A heartbeat of ours that came back."""
    number, _, _ = liveness.next_beat(now_s - trip_s - held_s)
    liveness.beat(number, number, held_s, now_s)


def test_a_peer_that_was_never_there_is_gone_since_the_beginning() -> None:
    liveness = Liveness(PATIENCE, START_S)
    assert not liveness.look(START_S + 100.0)
    assert (liveness.condition, liveness.since_s) == (GONE, START_S)
    assert liveness.round_trip_s is None


def test_a_peer_is_up_from_its_first_heartbeat_on() -> None:
    liveness = Liveness(PATIENCE, START_S)
    liveness.begin(0.25, START_S + 8.0)
    assert (liveness.condition, liveness.since_s) == (UP, START_S + 8.0)


@pytest.mark.parametrize(
    ("later_s", "condition"),
    [
        (0.0, UP),
        (LATE_S, UP),
        (LATE_S + 1e-9, SLOW),
        (2.0, SLOW),
        (2.0 + 1e-9, SILENT),
        (16.0, SILENT),
        (16.0 + 1e-9, GONE),
        (1e9, GONE),
    ],
)
def test_a_condition_begins_right_behind_its_border(
    later_s: float, condition: PeerCondition
) -> None:
    assert at(heard(), later_s) is condition


def test_a_condition_changes_only_when_somebody_looks_and_that_is_news_once() -> None:
    liveness = heard()
    assert liveness.condition is UP
    assert liveness.look(START_S + 4.0)
    assert (liveness.condition, liveness.since_s) == (SILENT, START_S + 4.0)
    assert not liveness.look(START_S + 8.0)
    assert liveness.since_s == START_S + 4.0
    assert liveness.look(START_S + 32.0)
    assert (liveness.condition, liveness.since_s) == (GONE, START_S + 32.0)


@pytest.mark.parametrize("their_beat_s", [0.001, 0.25, 2 / 3])
def test_a_peer_with_short_intervals_has_our_patience(their_beat_s: float) -> None:
    liveness = heard(their_beat_s=their_beat_s)
    assert at(liveness, 2.0) is SLOW
    assert at(liveness, 2.0 + 1e-9) is SILENT


def test_a_peer_with_long_intervals_is_silent_after_three_of_them() -> None:
    liveness = heard(their_beat_s=4.0)
    assert at(liveness, 0.6 * 12.0) is UP
    assert at(liveness, 0.6 * 12.0 + 1e-9) is SLOW
    assert at(liveness, 12.0) is SLOW
    assert at(liveness, 12.0 + 1e-9) is SILENT
    assert at(liveness, 16.0) is SILENT
    assert at(liveness, 16.0 + 1e-9) is GONE


def test_a_peer_with_intervals_longer_than_that_is_gone_when_it_would_be_silent() -> None:
    liveness = heard(their_beat_s=8.0)
    assert at(liveness, 24.0) is SLOW
    assert at(liveness, 24.0 + 1e-9) is GONE


def test_heartbeats_in_time_keep_a_peer_up() -> None:
    liveness = heard()
    for number in range(1, 100):
        liveness.beat(number, None, 0.0, START_S + number)
        assert (liveness.condition, liveness.since_s) == (UP, START_S)


@pytest.mark.parametrize(("gap_s", "is_late"), [(LATE_S, False), (1.25, True), (8.0, True)])
def test_a_peer_is_slow_for_a_while_after_a_heartbeat_that_was_late(
    gap_s: float, is_late: bool
) -> None:
    liveness = heard()
    late_s = START_S + gap_s
    liveness.beat(2, None, 0.0, late_s)
    assert liveness.condition is (SLOW if is_late else UP)
    for number in range(1, 8):
        liveness.beat(2 + number, None, 0.0, late_s + number * 0.25)
        assert liveness.condition is (SLOW if is_late else UP)
    liveness.beat(10, None, 0.0, late_s + 2.0)
    assert liveness.condition is UP


def test_a_silent_peer_that_is_heard_again_is_slow_and_then_up() -> None:
    liveness = heard()
    assert at(liveness, 4.0) is SILENT
    liveness.beat(2, None, 0.0, START_S + 5.0)
    assert (liveness.condition, liveness.since_s) == (SLOW, START_S + 5.0)
    liveness.beat(3, None, 0.0, START_S + 6.0)
    assert liveness.condition is SLOW
    liveness.beat(4, None, 0.0, START_S + 7.0)
    assert (liveness.condition, liveness.since_s) == (UP, START_S + 7.0)


def test_a_peer_that_was_gone_and_comes_again_is_up_at_once() -> None:
    liveness = heard()
    assert at(liveness, 32.0) is GONE
    liveness.begin(0.25, START_S + 33.0)
    liveness.beat(1, None, 0.0, START_S + 33.0)
    assert (liveness.condition, liveness.since_s) == (UP, START_S + 33.0)


def test_a_peer_that_leaves_is_gone_at_once() -> None:
    liveness = heard()
    liveness.end(START_S + 0.5)
    assert (liveness.condition, liveness.since_s) == (GONE, START_S + 0.5)
    assert liveness.next_beat(START_S + 1.0) == (1, None, 0.0)


def test_a_round_trip_is_the_time_since_our_heartbeat_less_what_it_was_held() -> None:
    liveness = heard()
    trip(liveness, 0.125, START_S + 1.0, held_s=0.5)
    assert liveness.round_trip_s == 0.125


def test_the_round_trip_is_the_median_of_the_last_sixteen() -> None:
    liveness = heard()
    for number in range(8):
        trip(liveness, 0.5, START_S + number)
    for number in range(8, 16):
        trip(liveness, 0.25, START_S + number)
    assert liveness.round_trip_s == 0.375
    trip(liveness, 0.25, START_S + 16)
    assert liveness.round_trip_s == 0.25


@pytest.mark.parametrize("held_s", [0.25, 0.26, 1e6])
def test_a_peer_that_says_it_held_a_heartbeat_longer_than_it_took_makes_no_negative_trip(
    held_s: float,
) -> None:
    liveness = heard()
    number, _, _ = liveness.next_beat(START_S)
    liveness.beat(2, number, held_s, START_S + 0.25)
    assert liveness.round_trip_s == 0.0


def test_an_echo_of_what_was_not_sent_or_came_back_already_says_nothing() -> None:
    liveness = heard()
    number, _, _ = liveness.next_beat(START_S)
    liveness.beat(2, number + 1, 0.0, START_S + 0.5)
    liveness.beat(3, 0, 0.0, START_S + 0.5)
    liveness.beat(4, None, 0.0, START_S + 0.5)
    assert liveness.round_trip_s is None
    liveness.beat(5, number, 0.0, START_S + 0.5)
    assert liveness.round_trip_s == 0.5
    for again in range(6, 12):
        liveness.beat(again, number, 0.0, START_S + 1.0)
    assert liveness.round_trip_s == 0.5


def test_only_the_last_64_heartbeats_are_awaited() -> None:
    liveness = heard()
    numbers = [liveness.next_beat(START_S)[0] for _ in range(65)]
    assert numbers == list(range(1, 66))
    liveness.beat(2, 1, 0.0, START_S + 0.5)
    assert liveness.round_trip_s is None
    liveness.beat(3, 2, 0.0, START_S + 0.5)
    assert liveness.round_trip_s == 0.5


def test_a_new_connection_begins_with_no_round_trips() -> None:
    liveness = heard()
    trip(liveness, 0.5, START_S + 1.0)
    number, _, _ = liveness.next_beat(START_S + 1.0)
    liveness.begin(0.25, START_S + 2.0)
    assert liveness.round_trip_s is None
    liveness.beat(1, number, 0.0, START_S + 2.0)
    assert liveness.round_trip_s is None


@pytest.mark.parametrize(("trip_s", "condition"), [(LATE_S - 0.01, UP), (1.25, SLOW)])
def test_a_peer_that_is_far_is_slow_though_its_heartbeats_come_in_time(
    trip_s: float, condition: PeerCondition
) -> None:
    liveness = heard()
    for number in range(1, 10):
        trip(liveness, trip_s, START_S + number)
    assert at(liveness, 9.0) is condition


def test_one_long_round_trip_among_others_changes_nothing() -> None:
    liveness = heard()
    for number, trip_s in enumerate((0.25, 1.5, 0.25), start=1):
        trip(liveness, trip_s, START_S + number)
    assert liveness.round_trip_s == 0.25
    assert at(liveness, 3.0) is UP


def test_a_heartbeat_says_which_one_came_last_and_how_long_ago_that_was() -> None:
    liveness = Liveness(PATIENCE, START_S)
    assert liveness.next_beat(START_S) == (1, None, 0.0)
    liveness.begin(0.25, START_S + 1.0)
    liveness.beat(70, None, 0.0, START_S + 1.0)
    assert liveness.next_beat(START_S + 1.25) == (2, 70, 0.25)
    assert liveness.next_beat(START_S + 1.5) == (3, 70, 0.5)
    liveness.beat(71, 2, 0.0, START_S + 1.5)
    assert liveness.next_beat(START_S + 1.5) == (4, 71, 0.0)


def test_an_agent_that_itself_slept_blames_nobody() -> None:
    liveness = heard()
    liveness.slept(100.0, START_S + 100.5)
    assert at(liveness, 100.5) is UP
    liveness.beat(2, None, 0.0, START_S + 101.0)
    assert liveness.condition is UP
    assert at(liveness, 101.0 + 2.0 + 1e-9) is SILENT


def test_silence_from_before_a_sleep_and_after_it_counts_together() -> None:
    liveness = heard()
    liveness.slept(100.0, START_S + 101.0)
    assert at(liveness, 102.0) is SLOW
    assert at(liveness, 102.0 + 1e-9) is SILENT


def test_what_a_sleep_held_up_is_told_to_the_peer_as_held() -> None:
    liveness = heard()
    liveness.slept(100.0, START_S + 100.5)
    assert liveness.next_beat(START_S + 100.5) == (1, 1, 100.5)


def test_what_was_on_its_way_while_this_agent_slept_makes_no_round_trip() -> None:
    liveness = heard()
    number, _, _ = liveness.next_beat(START_S)
    liveness.slept(100.0, START_S + 100.5)
    liveness.beat(2, number, 0.0, START_S + 100.5)
    assert liveness.round_trip_s is None
    assert liveness.condition is UP


def test_a_sleep_that_was_longer_than_the_time_since_a_heartbeat_makes_no_negative_time() -> None:
    liveness = heard()
    liveness.slept(1e6, START_S + 1.0)
    assert liveness.next_beat(START_S + 1.0) == (1, 1, 1.0)
    assert at(liveness, 1.0 + 1.125) is UP
    assert at(liveness, 1.0 + 2.0) is SLOW


def test_a_sleep_changes_nothing_for_a_peer_that_is_not_there() -> None:
    liveness = Liveness(PATIENCE, START_S)
    liveness.slept(100.0, START_S + 100.0)
    assert liveness.condition is GONE
    assert liveness.next_beat(START_S + 100.0) == (1, None, 0.0)


steps = st.lists(
    st.tuples(
        st.sampled_from(["beat", "next", "look", "slept", "begin", "end"]),
        st.floats(0, 30),
        st.floats(0, 1e6),
        st.none() | st.integers(0, 20),
    ),
    max_size=30,
)


@given(steps)
def test_whatever_happens_no_time_is_negative_and_what_is_silent_was_quiet_for_long(
    happened: list[tuple[str, float, float, int | None]],
) -> None:
    liveness, now_s, last_s = Liveness(PATIENCE, START_S), START_S, None
    awaited: dict[int, float] = {}
    for what, wait_s, held_s, echo in happened:
        now_s += wait_s
        match what:
            case "beat":
                if liveness.condition is GONE:
                    liveness.begin(0.25, now_s)
                    awaited.clear()
                if echo in awaited:
                    awaited = {n: at_s for n, at_s in awaited.items() if n > echo}
                liveness.beat(1, echo, held_s, now_s)
                last_s = now_s
                is_deaf = any(now_s - at_s > 2.25 for at_s in awaited.values())
                assert liveness.condition in ((SILENT,) if is_deaf else (UP, SLOW))
            case "next":
                number, _, since_s = liveness.next_beat(now_s)
                awaited[number] = now_s
                assert since_s >= 0
            case "look":
                liveness.look(now_s)
            case "slept":
                liveness.slept(held_s, now_s)
                liveness.look(now_s)
                awaited.clear()
            case "begin":
                liveness.begin(0.25, now_s)
                last_s = now_s
                awaited.clear()
            case _:
                liveness.end(now_s)
                assert liveness.condition is GONE
        assert liveness.since_s <= now_s
        assert liveness.round_trip_s is None or liveness.round_trip_s >= 0
        if liveness.condition is SILENT:
            assert last_s is not None
            assert now_s - min([last_s, *(at_s + 0.25 for at_s in awaited.values())]) > 2.0


def test_a_peer_that_hears_nothing_of_us_is_silent_though_it_is_heard() -> None:
    """As when a connection is dead in one direction alone."""
    liveness, now_s = Liveness(PATIENCE, START_S), START_S
    liveness.begin(0.25, now_s)
    number, _, _ = liveness.next_beat(now_s)
    liveness.beat(1, number, 0.0, now_s)
    deaf_from_s = now_s
    while liveness.condition is UP:
        now_s += 0.25
        liveness.next_beat(now_s)
        # It goes on to tell the one that it heard last.
        liveness.beat(2, number, now_s - deaf_from_s, now_s)
        assert now_s < deaf_from_s + 5
    # The first that is not answered goes out 0.25 s later, and its answer may wait as long; late
    # is more than 1.2 s, silent more than 2 s.
    assert liveness.condition is SLOW
    assert now_s - deaf_from_s == pytest.approx(1.75)
    while liveness.condition is SLOW:
        now_s += 0.25
        liveness.next_beat(now_s)
        liveness.beat(3, number, now_s - deaf_from_s, now_s)
    assert liveness.condition is SILENT
    assert now_s - deaf_from_s == pytest.approx(2.75)
    # One answer is enough.
    latest, _, _ = liveness.next_beat(now_s)
    liveness.beat(4, latest, 0.0, now_s)
    assert liveness.condition is UP
