"""What the arguments of the Client become in messages; wrong ones are refused with a reason."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from edge_agent.devices import UnitId
from edge_agent.errors import BadRequest
from edge_agent.plans import SERVED_TARGETS, AllowedWire, Bound, Pin, Target, wanted_limit
from edge_agent.tensors import Shape, TensorName, WireType
from edge_agent.wire.messages import MAX_DEADLINE_S
from edge_agent.wire.parts import MAX_DIMENSION, MAX_PINS, Bounds, Pins, Shapes, Targets

HALF_BOUND = 1e-2
"""How far outputs may be from those in float32, as a share of their range, where float16 or fewer
bits between devices are allowed and nothing else is said."""
_MOST_SHOWN = 60


def text_of(name: str, given: object, what: str) -> str:
    """A text that UTF-8 can hold; `what` says of what. Raises: BadRequest."""
    if not isinstance(given, str):
        raise BadRequest(f"{name}: got {_shown(given)}, want {what} (a str)")
    if not given.isascii():
        try:
            given.encode()
        except UnicodeEncodeError:
            raise BadRequest(f"{name}: got {_shown(given)}, want {what} in valid UTF-8") from None
    return given


def flag_of(name: str, given: bool) -> bool:
    """A truth value. Raises: BadRequest."""
    if given is True or given is False:
        return given
    # Those of numpy say so by the kind of their dtype.
    if getattr(getattr(given, "dtype", None), "kind", "") == "b" and getattr(given, "ndim", 1) == 0:
        return bool(given)
    raise BadRequest(f"{name}: got {_shown(given)}, want True or False")


def path_of(name: str, given: str | os.PathLike[str], what: str) -> str:
    """An absolute path. Raises: BadRequest."""
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    return os.path.abspath(text_of(name, text, what))


def check_socket(given: object) -> None:
    """Refuse a socket that is no path. Raises: BadRequest."""
    if not isinstance(given, str | os.PathLike | None):
        raise BadRequest(f"socket: got {_shown(given)}, want a path, or None for the default")


def mapping_of(name: str, given: object, what: str) -> Mapping[str, Any]:
    """Something by text; `what` says what. Raises: BadRequest."""
    if not isinstance(given, Mapping):
        raise BadRequest(f"{name}: got {_shown(given)}, want {what}, as a dict")
    for key in given:
        if type(key) is not str:
            text_of(name, key, f"{what}: each key")
    return given


def texts_of(name: str, given: Sequence[str], what: str) -> tuple[str, ...]:
    """Texts, or a single one. Raises: BadRequest."""
    return tuple(text_of(name, one, what) for one in _several(given))


def model_of(name: str, given: str) -> str:
    """The name of a loaded model. Raises: BadRequest."""
    return text_of(name, given, "the name of a loaded model")


def check_progress(given: object) -> None:
    """Refuse an `on_progress` that cannot be called. Raises: BadRequest."""
    if not callable(given):
        raise BadRequest(
            f"on_progress: got {_shown(given)}, want a function of a fraction and a text"
        )


def shapes_of(shapes: Mapping[str, Shape] | None) -> Shapes:
    """Shapes by input; None: none. Raises: BadRequest."""
    if shapes is None:
        return ()
    given = mapping_of("shapes", shapes, "shapes by the names of inputs")
    return tuple((TensorName(name), _shape(name, shape)) for name, shape in given.items())


def _shape(name: str, shape: object) -> Shape:
    sizes = None
    if not isinstance(shape, (str, bytes)):
        try:
            sizes = [_whole(size) for size in shape]  # type: ignore[attr-defined]
        except TypeError:
            sizes = None
    if sizes is None or not all(s is not None and 0 <= s <= MAX_DIMENSION for s in sizes):
        raise BadRequest(
            f'shapes: got {_shown(shape)} for "{name}", want whole numbers of 0 to {MAX_DIMENSION},'
            " one for each dimension"
        )
    return tuple(size for size in sizes if size is not None)


def pins_of(pins: Mapping[str, str] | None) -> Pins:
    """Units by patterns of node names; None: none. Raises: BadRequest."""
    if pins is None:
        return ()
    mapping_of("pins", pins, "units by patterns of node names")
    if len(pins) > MAX_PINS:
        raise BadRequest(f"pins: got {len(pins)}, want at most {MAX_PINS}")
    for pattern, unit in pins.items():
        text_of("pins", unit, f'the unit of "{pattern}"')
        if not pattern or not unit:
            raise BadRequest(f'pins: got "{pattern}" on "{unit}", want a pattern and a unit')
    return tuple(Pin(pattern=pattern, unit=UnitId(unit)) for pattern, unit in pins.items())


def served_target(target: object) -> Target:
    """A target that a loaded model can be measured for. Raises: BadRequest."""
    if not isinstance(target, str) or target not in SERVED_TARGETS:
        wanted = ", ".join(t.value for t in SERVED_TARGETS)
        raise BadRequest(f'target: got "{_cut(target)}", want one of {wanted}')
    return Target(target)


def targets_of(targets: Sequence[Target | str]) -> Targets:
    """Any targets, each once. Raises: BadRequest."""
    found = tuple(_target("targets", target) for target in _several(targets))
    if len(set(found)) < len(found):
        raise BadRequest(f"targets: got one twice among {', '.join(found)}")
    return found


def bounds_of(bounds: Mapping[Target | str, float] | None) -> Bounds:
    """Limits by target; None: none. Raises: BadRequest."""
    if bounds is None:
        return ()
    if not isinstance(bounds, Mapping):
        raise BadRequest(f"bounds: got {_shown(bounds)}, want limits by target, as a dict")
    return tuple(_bound(_target("bounds", target), limit) for target, limit in bounds.items())


def _bound(target: Target, limit: object) -> Bound:
    number = _number(limit)
    if number is None or not (math.isfinite(number) and number >= 0):
        raise BadRequest(f"bounds: got {_shown(limit)} for {target}, want {wanted_limit(target)}")
    return Bound(target=target, limit=number)


def check_front(targets: Targets, *, is_pareto: bool) -> None:
    """Refuse the Pareto set over one target. Raises: BadRequest."""
    if is_pareto and len(targets) == 1:
        raise BadRequest(
            f"is_pareto: got the target {targets[0]} alone, want two or more targets, or none for "
            "all that are known"
        )


def half_bound(allowed: Sequence[str]) -> float | None:
    """What `fp16` or `fp16=BOUND` says, the last of them; None: nothing. Raises: BadRequest."""
    bound = None
    for text in _several(allowed):
        what, bound = _with_bound(text)
        if what != "fp16" or not 0 < bound < 1:
            raise BadRequest(
                f'allow: got "{_cut(text)}", want fp16 or fp16=BOUND with 0 < BOUND < 1'
            )
    return bound


def wire_of(given: str | None) -> AllowedWire | None:
    """What `fp16`, `int8`, `fp16=BOUND` or `int8=BOUND` says. Raises: BadRequest."""
    if given is None:
        return None
    what, bound = _with_bound(given)
    known = {wire.value: wire for wire in WireType}
    if what not in known or not 0 < bound < 1:
        raise BadRequest(
            f'wire: got "{_cut(given)}", want one of {", ".join(known)}, or with =BOUND and '
            "0 < BOUND < 1"
        )
    return AllowedWire(type=known[what], bound=bound)


def _with_bound(text: object) -> tuple[str, float]:
    """WHAT or WHAT=BOUND as (what, bound); NaN if the bound is no number."""
    what, equals, number = _cut(text).partition("=")
    try:
        return what, float(number) if equals else HALF_BOUND
    except ValueError:
        return what, math.nan


def count_of(name: str, count: int | None, most: int) -> int | None:
    """A count that may be left out. Raises: BadRequest."""
    if count is None:
        return None
    number = _whole(count)
    if number is None or not 1 <= number <= most:
        raise BadRequest(
            f"{name}: got {_shown(count)}, want a whole number of 1 to {most}, or None"
        )
    return number


def deadline_of(deadline_s: float | None) -> float | None:
    """Seconds until a deadline; None: there is none. Raises: BadRequest."""
    if deadline_s is None:
        return None
    number = _number(deadline_s)
    if number is None or not number <= MAX_DEADLINE_S:
        raise BadRequest(
            f"deadline_s: got {_shown(deadline_s)}, want at most {MAX_DEADLINE_S:.0f} seconds, or "
            "None for none"
        )
    return number


def timeout_of(timeout_s: float | None) -> float | None:
    """Seconds to wait; None: without end. Raises: BadRequest."""
    if timeout_s is None:
        return None
    number = _number(timeout_s)
    if number is None or math.isnan(number):
        raise BadRequest(
            f"timeout_s: got {_shown(timeout_s)}, want a number of seconds, or None for no limit"
        )
    return number


def seconds_of(name: str, given: float) -> float:
    """A duration above 0. Raises: BadRequest."""
    number = _number(given)
    if number is None or not 0 < number <= MAX_DEADLINE_S:
        raise BadRequest(
            f"{name}: got {_shown(given)}, want more than 0 and at most {MAX_DEADLINE_S:.0f} "
            "seconds"
        )
    return number


def _number(value: object) -> float | None:
    """None: it is none, or too large. Those of numpy are numbers too, and truth values are not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return int(value)


def _target(where: str, target: object) -> Target:
    if isinstance(target, str):
        for known in Target:
            if target == known:
                return known
    raise BadRequest(f'{where}: got "{_cut(target)}", want one of {", ".join(Target)}')


def _several(given: object) -> Iterable[object]:
    """What may be one or several."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        return (given,)
    return given


def _shown(value: object) -> str:
    """As Python writes it, as far as that can be read."""
    try:
        text = str(value) if isinstance(value, Real) else repr(value)
    except ValueError:
        return f"numbers of more than {_MOST_SHOWN} digits"
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _cut(value: object) -> str:
    """A text as it is, other things as Python writes them, as far as that can be read."""
    if not isinstance(value, str):
        return _shown(value)
    return value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}…"
