"""How much of another device is put up with, at made-up times."""

from __future__ import annotations

import pytest

from edge_agent.agent.offences import (
    FIRST_BAR_S,
    LONGEST_BAR_S,
    PATIENCE,
    WINDOW_S,
    Offences,
    Pace,
)


def test_a_burst_is_taken_at_once_and_then_nothing_until_half_of_it_is_back() -> None:
    pace = Pace(per_s=10.0, burst=20.0)
    assert [pace.take(5.0) for _ in range(20)] == [0.0] * 20
    assert pace.take(5.0) == 1.0
    assert pace.take(5.0) == 1.0
    assert pace.take(5.5) == 0.0


def test_who_waits_as_long_as_it_is_told_may_send_half_a_burst() -> None:
    pace = Pace(per_s=10.0, burst=20.0)
    for _ in range(20):
        pace.take(5.0)
    wait_s = pace.take(5.0)
    assert [pace.take(5.0 + wait_s) for _ in range(10)] == [0.0] * 10
    assert pace.take(5.0 + wait_s) == 1.0


def test_the_bucket_fills_at_its_pace_and_never_beyond_the_burst() -> None:
    pace = Pace(per_s=2.0, burst=4.0)
    assert [pace.take(0.0) for _ in range(5)] == [0.0] * 4 + [1.0]
    assert pace.take(0.25) == 0.75  # Half a message is back.
    assert pace.take(0.5) == 0.0
    assert pace.take(0.5) == 1.0
    assert [pace.take(1e6) for _ in range(5)] == [0.0] * 4 + [1.0]


def test_one_that_keeps_to_the_pace_is_never_held_up() -> None:
    pace = Pace(per_s=4.0, burst=2.0)
    assert all(pace.take(number / 4) == 0.0 for number in range(1000))


def test_one_that_is_a_tenth_too_fast_is_held_up_when_the_burst_is_used_up() -> None:
    pace = Pace(per_s=10.0, burst=20.0)
    taken = 0
    while pace.take(taken / 11) == 0.0:
        taken += 1
    # 20 + 10 t - 11 t < 1 at t = 19, within a message.
    assert 209 <= taken <= 211


def test_the_first_message_may_come_at_any_time_of_the_clock() -> None:
    assert Pace(per_s=1.0, burst=2.0).take(0.0) == 0.0
    late = Pace(per_s=1.0, burst=2.0)
    assert [late.take(1e9) for _ in range(3)] == [0.0, 0.0, 1.0]


def barred_at(offences: Offences, times_s: list[float]) -> list[bool]:
    return [offences.note("x", now_s) for now_s in times_s]


def test_nobody_is_barred_at_first() -> None:
    offences = Offences()
    assert not offences.is_barred(0.0)
    assert offences.bar_left_s(0.0) == 0.0
    assert (offences.count, offences.last) == (0, "")


def test_the_fifth_offence_within_the_window_bars() -> None:
    offences = Offences()
    assert barred_at(offences, [0.0, 1.0, 2.0, 3.0]) == [False] * 4
    assert not offences.is_barred(3.0)
    assert offences.note("it shouts", WINDOW_S)
    assert offences.is_barred(WINDOW_S)
    assert offences.bar_left_s(WINDOW_S) == FIRST_BAR_S == 30.0
    assert offences.bar_left_s(WINDOW_S + 29.0) == 1.0
    assert offences.is_barred(WINDOW_S + 29.999)
    assert not offences.is_barred(WINDOW_S + 30.0)
    assert offences.bar_left_s(WINDOW_S + 31.0) == 0.0
    assert (offences.count, offences.last) == (PATIENCE, "it shouts")


def test_offences_that_are_spread_out_do_not_bar() -> None:
    offences = Offences()
    # Four intervals of just more than a quarter of the window.
    assert barred_at(offences, [number * 15.001 for number in range(100)]) == [False] * 100
    assert offences.count == 100


def test_old_offences_count_no_more_when_new_ones_come() -> None:
    offences = Offences()
    barred_at(offences, [0.0, 1.0, 2.0, 3.0])
    assert barred_at(offences, [60.5, 61.5, 62.5]) == [False, False, False]
    # 3.0, 60.5, 61.5, 62.5 and this one are within the window.
    assert offences.note("x", 63.0)


def test_what_is_done_while_it_is_barred_is_counted_but_makes_it_no_longer() -> None:
    offences = Offences()
    barred_at(offences, [0.0] * PATIENCE)
    assert barred_at(offences, [10.0] * 20) == [False] * 20
    assert offences.count == 25
    assert offences.bar_left_s(10.0) == 20.0
    # Nor do they count towards the next bar.
    assert barred_at(offences, [30.0] * PATIENCE) == [False] * 4 + [True]


def test_each_bar_is_twice_as_long_as_the_one_before_up_to_the_longest() -> None:
    offences, now_s, lengths = Offences(), 0.0, []
    for _ in range(30):
        assert barred_at(offences, [now_s] * PATIENCE) == [False] * 4 + [True]
        lengths.append(offences.bar_left_s(now_s))
        now_s += lengths[-1]
    assert lengths[:8] == [30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0]
    assert lengths[8:] == [LONGEST_BAR_S] * 22


@pytest.mark.parametrize("calm_s", [1.0, 1e6])
def test_a_bar_is_not_forgotten_however_long_it_behaves(calm_s: float) -> None:
    offences = Offences()
    barred_at(offences, [0.0] * PATIENCE)
    barred_at(offences, [30.0 + calm_s] * PATIENCE)
    assert offences.bar_left_s(30.0 + calm_s) == 60.0
