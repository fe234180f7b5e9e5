"""Plans for single shapes, as commands print them."""

from __future__ import annotations

from edge_agent.cli.output import print_table
from edge_agent.wire.parts import ModelState, Shapes


def shapes_text(shapes: Shapes) -> str:
    """Shapes by input, as people read them."""
    return ", ".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in shapes)


def print_specialised(state: ModelState) -> None:
    """A table of the plans of a model for single shapes; nothing where there are none."""
    if not state.specialised and not state.specialising:
        return
    print(f"\n{state.name}: plans for single shapes")
    if state.specialised:
        rows = [
            (
                shapes_text(s.shapes),
                f"{s.share:.0%}",
                "yes" if s.is_serving else "no",
                "-" if s.measured_s is None else f"{s.measured_s * 1e3:.3g}",
                "-" if s.general_over_plan is None else f"{s.general_over_plan.median:.3f}",
                s.plan if s.is_serving else s.reason,
            )
            for s in state.specialised
        ]
        print_table(("shapes", "asked", "serves", "ms", "general over it", "plan or reason"), rows)
    if state.specialising:
        print(f"being planned: {state.specialising}")
