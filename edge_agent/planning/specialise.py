"""Which input shapes of a model deserve subgraphs of their own, by how often they are asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from edge_agent.tensors import ShapeSet


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapePolicy:
    """When a set of shapes is specialised, and when no longer.

    To come in takes five times the share that it takes to stay, and twice the requests of the one
    that gives way: counts that wander around a limit change nothing.
    """

    most: int
    """How many at once; 0: none."""
    least_requests: int = 32
    """A set of shapes that was asked less often is not specialised."""
    least_share: float = 0.1
    """Nor is one with a smaller share of the recent requests."""
    kept_share: float = 0.02
    """One that is specialised stays so down to this share."""
    clearly_more: int = 2
    """How many times as often a set must be asked to take the place of another."""


def choose_shapes(
    counts: Mapping[ShapeSet, int],
    present: Sequence[ShapeSet],
    refused: Collection[ShapeSet],
    policy: ShapePolicy,
) -> tuple[ShapeSet, ...]:
    """The sets of shapes to be specialised: those of `present` that stay, in order, then new ones,
    the most asked first.

    `counts` are recent requests by the shapes of their inputs. Those in `refused` gained nothing
    from it and do not come in. With fewer requests than `least_requests`, nothing changes.
    """
    total = sum(counts.values())
    if total < policy.least_requests:
        return tuple(present[: policy.most])

    def asked(shapes: ShapeSet) -> int:
        return counts.get(shapes, 0)

    def by_need(shapes: ShapeSet) -> tuple[int, ShapeSet]:
        return -asked(shapes), shapes

    kept = [s for s in present if asked(s) >= policy.kept_share * total]
    chosen = sorted(kept, key=by_need)[: policy.most]
    wanting = sorted(
        (
            shapes
            for shapes, count in counts.items()
            if count >= max(policy.least_requests, policy.least_share * total)
            and shapes not in kept
            and shapes not in refused
        ),
        key=by_need,
    )
    for shapes in wanting:
        if len(chosen) >= policy.most:
            if not chosen or asked(shapes) < policy.clearly_more * asked(chosen[-1]):
                break
            chosen.pop()
        chosen.append(shapes)
        chosen.sort(key=by_need)
    stay = [s for s in present if s in chosen]
    return (*stay, *(s for s in chosen if s not in stay))
