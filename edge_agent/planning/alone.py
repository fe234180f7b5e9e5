"""What each branch of a fork demands alone, in each choice."""

from __future__ import annotations

import numpy as np

from edge_agent.planning.tables import Floats, Tables
from edge_agent.summaries import Fork


def crossing(fork: Fork) -> tuple[Floats, Floats]:
    """(branches,) each: bytes that a branch alone reads, and that it gives."""
    given = [fork.input_bytes((b,)) for b in range(len(fork.branches))]
    taken = [branch.output_bytes for branch in fork.branches]
    return np.array(given, np.float64), np.array(taken, np.float64)


def seconds_of_branches(tables: Tables, fork: Fork) -> Floats:
    """(branches, c): of each branch alone, without overhead and borders."""
    work = np.array([branch.work for branch in fork.branches])
    found: Floats = work @ tables.seconds[fork.segments.start : fork.segments.stop]
    return found


def held_by_branches(tables: Tables, fork: Fork) -> Floats:
    """(branches, c): bytes of the weights of each branch in each choice."""
    size = np.array([float(branch.constant_bytes) for branch in fork.branches])
    is_half = np.array(
        [c.configuration is not None and c.configuration.is_half for c in tables.choices]
    )
    return size[:, None] * np.where(is_half, 0.5, 1.0)


def bytes_of_branches(tables: Tables, fork: Fork) -> Floats:
    """(branches, c): bytes of each branch alone in each choice, weights and activations."""
    working = np.array([float(branch.working_bytes) for branch in fork.branches])
    found: Floats = held_by_branches(tables, fork) + working[:, None] / tables.per_round
    return found


def most_of_branches(tables: Tables) -> Floats:
    """(pools,): no distribution has more there of branches: each in every form, and all arms that
    can be made of them."""
    found = np.zeros(len(tables.pools))
    for fork in tables.problem.summary.forks:
        arms = 2.0 ** min(len(fork.branches), 100)
        working = max(float(branch.working_bytes) for branch in fork.branches)
        held = held_by_branches(tables, fork).sum(axis=0)
        np.add.at(found, tables.pool_of, held + arms * working / tables.per_round)
    return found
