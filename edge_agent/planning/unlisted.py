"""What no plan can beat whatever ways its forks run, where not all ways are among the choices.

Branches may go anywhere, each to where it costs least, and share no run and no transfer: whatever
way a fork runs, it costs no less than that. One such way for each fork and home stands for all of
them in a sweep at given weights or prices (see `mixture`), which gives a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edge_agent.distributions import PlacedFork
from edge_agent.planning.amounts import Caps, column_count
from edge_agent.planning.arms import able_in, parted
from edge_agent.planning.branches import ForkOption, at_homes, widened
from edge_agent.planning.mixing import relaxed
from edge_agent.planning.mixture import Wish
from edge_agent.planning.schedules import least_times
from edge_agent.planning.shortest import Weights, sent, sweep, weigh
from edge_agent.planning.spread import bytes_of_branches, held_by_branches
from edge_agent.planning.tables import Floats, Tables, sends_between, tabulate
from edge_agent.plans import Target
from edge_agent.summaries import Fork

_SHARE = 0.1
"""Of the effort, to find prices."""


def least_cost(tables: Tables, target: Target, caps: Caps, effort: float) -> float:
    """What nothing can beat, whatever ways forks run: seconds per request for the throughput, else
    the metric; 0 where nothing is known."""
    if target is Target.MEMORY:
        return _least_bytes(tables)
    any_way = _AnyWay.of(tables, target)
    if any_way is None:
        return 0.0
    if target is not Target.THROUGHPUT:
        return any_way.least(Weights.of(any_way.tables, target))
    found = relaxed(tables, Wish(target=target), caps, effort * _SHARE)
    prices = found.best_prices
    if prices is None or np.isinf(found.bound):
        return 0.0
    # Of memory, branches that go anywhere need so little that its prices may do harm.
    loads_alone = np.where(np.arange(len(prices)) < len(tables.resources), prices, 0.0)
    bounds = [0.0]
    for row in (prices, loads_alone):
        total = any_way.least(any_way.moved(tables, found.weights_at(row[None])))
        bounds.append(found.bound_at(row, total))
    return max(bound for bound in bounds if np.isfinite(bound))


def _least_bytes(tables: Tables) -> float:
    """Of the fullest memory: something has to hold each segment, or each branch of a fork, and all
    of them together all weights."""
    plain = ~tables.is_fork
    weights = tables.weights[:, plain] + tables.refusal[:, plain]
    whole = (weights + tables.arenas[:, plain]).min(axis=1)
    smallest = weights.min(axis=1)
    for fork in tables.problem.summary.forks:
        inside = slice(fork.segments.start, fork.segments.stop)
        is_able = plain & np.isfinite(tables.refusal[inside]).all(axis=0)
        if not is_able.any():
            continue
        alone = bytes_of_branches(tables, fork)[:, is_able].min(axis=1)
        whole[inside] = np.minimum(whole[inside], alone.max())
        held = held_by_branches(tables, fork)[:, is_able].min(axis=1)
        # Of a fork as one.
        smallest[inside.start] = min(smallest[inside].sum(), held.sum())
        smallest[inside.start + 1 : inside.stop] = 0.0
    return float(max(whole.max(), smallest.sum() / len(tables.pools)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AnyWay:
    """Tables with one way for each fork and home, that costs no more than any."""

    bare: Tables
    """Without it."""
    tables: Tables
    least_s: Floats
    """(forks, d): seconds that none takes less than."""

    @classmethod
    def of(cls, tables: Tables, target: Target) -> _AnyWay | None:
        plain = tabulate(tables.problem, target)
        assert plain is not None, "there are tables already"
        bare, options = at_homes(plain, target, _one_each)
        if not options:
            return None
        return cls(bare=bare, tables=widened(bare, options), least_s=np.array(least_times(bare)))

    def moved(self, tables: Tables, weights: Weights) -> Weights:
        """Weights for tables of the same problem, for these."""
        own = Weights.none(self.tables, len(weights.seconds))
        loads, memory = own.loads, own.memory
        for at, name in enumerate(tables.resources):
            loads[:, self.tables.resources.index(name)] = weights.loads[:, at]
        for at, name in enumerate(tables.pools):
            memory[:, self.tables.pools.index(name)] = weights.memory[:, at]
        return replace(weights, loads=loads, memory=memory)

    def least(self, weights: Weights) -> float:
        """The cost of the cheapest route at one row of weights; infinity if there is none."""
        costs = weigh(self.tables, weights)
        forks = self.tables.forks
        found = np.array([self._costs(f, weights) for f in self._forks()])
        for step, place, choice in zip(
            forks.steps, forks.places.tolist(), forks.choices.tolist(), strict=True
        ):
            home = self.tables.devices.index(step.home)
            seconds = self.least_s[step.fork, home]
            cost = np.inf
            if np.isfinite(seconds):
                cost = found[step.fork, home] + float(weights.seconds[0]) * seconds
            costs.segment[place, 0, choice] = cost
        return float(sweep(self.tables, costs).totals[0])

    def _forks(self) -> tuple[Fork, ...]:
        return self.bare.problem.summary.forks

    def _costs(self, fork: Fork, weights: Weights) -> Floats:
        """(d,): of a fork from each home, but for the seconds of the request."""
        tables = self.bare
        able = able_in(tables, fork, parted(tables))
        if not able:
            return np.full(len(tables.devices), np.inf)
        rate = weights.joules[0] * tables.joules_per_s
        rate = rate + weights.loads[0, tables.resource_of] * tables.per_round
        given, taken = _carried(fork)
        work = np.array([branch.work for branch in fork.branches])
        seconds = work @ tables.seconds[fork.segments.start : fork.segments.stop]
        seconds = seconds + (given + taken)[:, None] * tables.border_s_per_byte
        runs = seconds * rate
        runs += held_by_branches(tables, fork) * weights.memory[0, tables.pool_of]
        best = np.full((len(tables.devices), len(fork.branches)), np.inf)
        np.minimum.at(best, tables.device_of[able], runs[:, able].T)
        there, back = self._sent(given, weights), self._sent(taken, weights)
        everywhere = there + back.swapaxes(1, 2) + best.T[:, None, :]
        # A way has two arms at least.
        started = 2.0 * (tables.overhead * rate)[able].min()
        found: Floats = everywhere.min(axis=2).sum(axis=0) + started
        return found

    def _sent(self, sizes: Floats, weights: Weights) -> Floats:
        """(branches, d, d): sending each size from each device to each, but for the time."""
        tables = self.bare
        untimed = replace(weights, seconds=np.zeros(1))
        sends = sends_between(tables.problem, tables.devices, sizes)
        here = weights.loads[:, tables.host_of]
        link = weights.loads[:, tables.link_of]
        costs = sent(sends, untimed, here[:, :, None], here[:, None, :], link)
        return costs[:, 0]


def _one_each(tables: Tables) -> list[ForkOption]:
    """A way for each fork and home, that is none."""
    return [
        ForkOption(
            step=PlacedFork(fork=index, segments=fork.segments, home=home, arms=()),
            home=at,
            demands=np.zeros(column_count(tables)),
        )
        for index, fork in enumerate(tables.problem.summary.forks)
        for at, home in enumerate(tables.devices)
    ]


def _carried(fork: Fork) -> tuple[Floats, Floats]:
    """(branches,) each: bytes that are read for each branch, those that several read by equal
    parts, and that it gives."""
    given = np.array([float(branch.input_bytes) for branch in fork.branches])
    for shared in fork.shared:
        readers = list(shared.branches)
        given[readers] -= shared.size_bytes * (1.0 - 1.0 / len(readers))
    taken = np.array([float(branch.output_bytes) for branch in fork.branches])
    return given, taken
