"""What the arguments of the Client become in messages; wrong ones are refused with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge_agent.devices import UnitId
from edge_agent.errors import BadRequest
from edge_agent.plans import SERVED_TARGETS, Bound, Pin, Target
from edge_agent.tensors import Shape, TensorName
from edge_agent.wire.parts import MAX_PINS, Bounds, Pins, Shapes, Targets


def shapes_of(shapes: Mapping[str, Shape]) -> Shapes:
    """Shapes by input."""
    return tuple((TensorName(name), tuple(shape)) for name, shape in shapes.items())


def pins_of(pins: Mapping[str, str]) -> Pins:
    """Units by patterns of node names. Raises: BadRequest."""
    if len(pins) > MAX_PINS:
        raise BadRequest(f"pins: got {len(pins)}, want at most {MAX_PINS}")
    for pattern, unit in pins.items():
        if not pattern or not unit:
            raise BadRequest(f'pins: got "{pattern}" on "{unit}", want a pattern and a unit')
    return tuple(Pin(pattern=pattern, unit=UnitId(unit)) for pattern, unit in pins.items())


def served_target(target: Target | str) -> Target:
    """A target that a loaded model can be measured for. Raises: BadRequest."""
    if target not in SERVED_TARGETS:
        wanted = ", ".join(t.value for t in SERVED_TARGETS)
        raise BadRequest(f'target: got "{target}", want one of {wanted}')
    return Target(target)


def targets_of(targets: Sequence[Target | str]) -> Targets:
    """Any targets, each once. Raises: BadRequest."""
    if isinstance(targets, str):
        targets = (targets,)
    found = tuple(_target("targets", target) for target in targets)
    if len(set(found)) < len(found):
        raise BadRequest(f"targets: got one twice among {', '.join(found)}")
    return found


def bounds_of(bounds: Mapping[Target | str, float]) -> Bounds:
    """Limits by target. Raises: BadRequest."""
    try:
        return tuple(
            Bound(target=_target("bounds", target), limit=limit) for target, limit in bounds.items()
        )
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _target(where: str, target: Target | str) -> Target:
    if target not in list(Target):
        raise BadRequest(f'{where}: got "{target}", want one of {", ".join(Target)}')
    return Target(target)
