"""The order in which nodes can run, whatever order the file has them in."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import onnx

from edge_agent.errors import ModelRefused
from edge_agent.model.scopes import node_label


def order_nodes(
    nodes: Sequence[onnx.NodeProto], node_reads: Sequence[Sequence[str]], file_name: str
) -> list[int]:
    """Indices of `nodes` such that each value is defined before a node reads it.

    `node_reads` holds what each node reads, captured names included.

    Stable: of the nodes that could come next, the first in the file does, so that nodes already
    in order stay as they are.

    Raises:
        ModelRefused: the nodes form a cycle.
    """
    producer = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, names in enumerate(node_reads):
        for source in {producer[name] for name in names if name in producer}:
            waiting[i] += 1
            readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers[i]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = next(i for i, count in enumerate(waiting) if count > 0)
        raise ModelRefused(
            f"{file_name}: {node_label(stuck, nodes[stuck])} lies on a cycle or behind one: its "
            "input depends on its own output; export the model again"
        )
    return order
