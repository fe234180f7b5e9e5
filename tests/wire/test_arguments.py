"""What the Client is given becomes what stands in messages, or is refused with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from edge_agent.errors import BadRequest
from edge_agent.plans import UNITS, AllowedWire, Bound, Target
from edge_agent.tensors import WireType
from edge_agent.wire.arguments import (
    bounds_of,
    check_front,
    count_of,
    deadline_of,
    half_bound,
    shapes_of,
    targets_of,
    timeout_of,
    wire_of,
)

HUGE = 10**400
NO_NUMBERS = (
    *[("12", "'12'"), (None, "None"), (True, "True"), (False, "False"), ([1.0], "[1.0]")],
    *[(math.nan, "nan"), (1j, "1j"), (HUGE, "1" + "0" * 59 + "…")],
    (np.bool_(True), repr(np.bool_(True))),
)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(BadRequest) as told:
        call()
    assert type(told.value) is BadRequest
    return str(told.value)


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize(
    ("limit", "text"),
    [*NO_NUMBERS, (math.inf, "inf"), (-1, "-1"), (-1e-9, "-1e-09"), (-HUGE, "-1" + "0" * 58 + "…")],
)
def test_a_limit_that_is_no_amount_is_refused(target: Target, limit: float, text: str) -> None:
    assert refusal(lambda: bounds_of({target.value: limit})) == (
        f"bounds: got {text} for {target}, want a finite number of at least 0, in {UNITS[target]}"
    )


def test_a_number_too_long_to_write_is_refused_like_others() -> None:
    told = refusal(lambda: bounds_of({"latency": 10**5000}))
    assert told.startswith("bounds: got numbers of more than 60 digits for latency, want a finite")


def test_limits_name_their_units() -> None:
    assert "at least 0, in seconds" in refusal(lambda: bounds_of({"latency": math.inf}))
    assert "in requests per second" in refusal(lambda: bounds_of({"throughput": math.inf}))


@pytest.mark.parametrize(
    ("limit", "want"),
    [
        *[(0, 0.0), (0.25, 0.25), (3, 3.0), (Fraction(1, 4), 0.25), (10**300, 1e300)],
        *[(np.float32(0.25), 0.25), (np.float64(0.1), 0.1), (np.int64(7), 7.0)],
    ],
)
def test_a_limit_becomes_a_plain_number(limit: float, want: float) -> None:
    (bound,) = bounds_of({"latency": limit})
    assert bound == Bound(target=Target.LATENCY, limit=want)
    assert type(bound.limit) is float


def test_a_limit_for_what_is_no_target_is_refused() -> None:
    assert refusal(lambda: bounds_of({"speed": 1.0})) == (
        'bounds: got "speed", want one of latency, throughput, energy, memory, bytes'
    )


@pytest.mark.parametrize(("targets", "text"), [(None, "None"), (3, "3"), (["speed"], "speed")])
def test_what_are_no_targets_is_refused(targets: list[str], text: str) -> None:
    assert refusal(lambda: targets_of(targets)).startswith(f'targets: got "{text}", want one of')


def test_the_pareto_set_is_over_two_targets_or_more() -> None:
    assert refusal(lambda: check_front((Target.ENERGY,), is_pareto=True)) == (
        "is_pareto: got the target energy alone, want two or more targets, or none for all that "
        "are known"
    )
    check_front((Target.ENERGY,), is_pareto=False)
    check_front((), is_pareto=True)
    check_front((Target.ENERGY, Target.LATENCY), is_pareto=True)


@pytest.mark.parametrize(("count", "text"), [*NO_NUMBERS, (0, "0"), (9, "9"), (1.5, "1.5")])
def test_a_count_is_a_whole_number_in_its_range(count: int, text: str) -> None:
    if count is None:
        assert count_of("threads", count, 8) is None
        return
    assert refusal(lambda: count_of("threads", count, 8)) == (
        f"threads: got {text}, want a whole number of 1 to 8, or None"
    )


def test_a_count_of_numpy_becomes_a_plain_one() -> None:
    got = count_of("threads", np.int64(8), 8)  # type: ignore[arg-type]
    assert (got, type(got)) == (8, int)


@pytest.mark.parametrize(("given", "text"), [*NO_NUMBERS, (math.inf, "inf"), (1e9, "1000000000.0")])
def test_a_deadline_is_a_number_of_seconds(given: float, text: str) -> None:
    if given is None:
        assert deadline_of(given) is None
        return
    assert refusal(lambda: deadline_of(given)) == (
        f"deadline_s: got {text}, want at most 1000000 seconds, or None for none"
    )


def test_a_time_to_wait_is_a_number_of_seconds_or_has_no_end() -> None:
    for given, text in NO_NUMBERS:
        if given is not None:
            assert refusal(lambda given=given: timeout_of(given)) == (  # type: ignore[misc]
                f"timeout_s: got {text}, want a number of seconds, or None for no limit"
            )
    assert (timeout_of(None), timeout_of(math.inf), timeout_of(2)) == (None, math.inf, 2.0)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        *[(None, "None"), (3, "3"), ("1x3", "'1x3'"), ((1, -3), "(1, -3)"), ((1.0,), "(1.0,)")],
        *[((True,), "(True,)"), ((2**48 + 1,), "(281474976710657,)"), (["N"], "['N']")],
        *[((10**5000,), "numbers of more than 60 digits"), ([None], "[None]")],
    ],
)
def test_a_shape_is_made_of_whole_numbers(shape: tuple[int, ...], text: str) -> None:
    assert refusal(lambda: shapes_of({"x": shape})) == (
        f'shapes: got {text} for "x", want whole numbers of 0 to 281474976710656, one for each '
        "dimension"
    )


def test_shapes_of_any_sequence_become_plain_tuples() -> None:
    given = {"x": [1, 0], "s": (), "y": np.zeros((2, 3)).shape, "z": np.array([4, 5])}
    assert shapes_of(given) == (("x", (1, 0)), ("s", ()), ("y", (2, 3)), ("z", (4, 5)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("allow", "text"),
    [(None, "None"), (0.05, "0.05"), ([5], "5"), (["fp16=1e400"], "fp16=1e400"), ("fp16=-1", None)],
)
def test_what_is_allowed_is_float16_with_a_share(allow: list[str], text: str | None) -> None:
    assert refusal(lambda: half_bound(allow)) == (
        f'allow: got "{text or allow}", want fp16 or fp16=BOUND with 0 < BOUND < 1'
    )


@pytest.mark.parametrize(
    ("given", "type_", "bound"),
    [
        ("fp16", WireType.FP16, 0.01),
        ("int8", WireType.INT8, 0.01),
        ("fp16=0.002", WireType.FP16, 0.002),
        ("int8=0.5", WireType.INT8, 0.5),
    ],
)
def test_tensors_may_be_sent_in_fewer_bits(given: str, type_: WireType, bound: float) -> None:
    assert wire_of(given) == AllowedWire(type=type_, bound=bound)


def test_nothing_said_of_the_wire_means_as_they_are() -> None:
    assert wire_of(None) is None


@pytest.mark.parametrize(
    "given", ["", "fp8", "fp16=", "fp16=0", "fp16=1", "int8=nan", "int8=-1", "FP16", 5, ["fp16"]]
)
def test_as_what_tensors_are_sent_is_one_of_two(given: str) -> None:
    assert refusal(lambda: wire_of(given)) == (
        f'wire: got "{given}", want one of fp16, int8, or with =BOUND and 0 < BOUND < 1'
    )
