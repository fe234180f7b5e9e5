"""Which configurations are so slow on the whole model that their parts need not be measured."""

from __future__ import annotations

from collections.abc import Mapping

from edge_agent.plans import Target
from edge_agent.profiles import Configuration

# How much slower than the best one that it can be compared with a configuration may be and stay in
# play: on its own resource; and on another one, which may be better at parts of the model, and for
# the throughput works beside it and adds to the rate.
_LOSER_RATIO = 1.5
_OTHER_RESOURCE_RATIO = {Target.LATENCY: 3.0, Target.THROUGHPUT: 8.0}


def clear_losers(
    least_s: Mapping[Configuration, float], target: Target
) -> dict[Configuration, Configuration]:
    """Clear losers, each with the one that it lost to.

    `least_s` holds the shortest time of a round of the whole model. Divisions mix configurations
    of equal instances on a resource, so each is compared with those; several instances are for the
    throughput, so they must also keep up in time per request, and so must each resource with the
    others, less strictly.
    """

    def per_request_s(configuration: Configuration) -> float:
        return least_s[configuration] / configuration.instances

    losers: dict[Configuration, Configuration] = {}
    for own, took_s in least_s.items():
        beside = [c for c in least_s if c.resource == own.resource]
        fastest = min((c for c in beside if c.instances == own.instances), key=lambda c: least_s[c])
        busiest, best = min(beside, key=per_request_s), min(least_s, key=per_request_s)
        others_s = _OTHER_RESOURCE_RATIO[target] * per_request_s(best)
        if took_s > _LOSER_RATIO * least_s[fastest]:
            losers[own] = fastest
        elif own.instances > 1 and per_request_s(own) > _LOSER_RATIO * per_request_s(busiest):
            losers[own] = busiest
        elif best.resource != own.resource and per_request_s(own) > others_s:
            losers[own] = best
    return losers
