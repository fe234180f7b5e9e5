"""Why a provider refused a node, by what ONNX Runtime and the providers say in their logs.

The lines are those that ONNX Runtime 1.24 to 1.32 and onnxruntime-qnn 2.7 print at level VERBOSE
while a session is created. OpenVINO's provider prints none about nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from edge_agent.engine.refusals import reason_of

_NO_KERNEL: Final = re.compile(
    r"kernel not found in registries for Op type: (?P<operator>\S+) node name: (?P<name>\S+)"
)
_SMALL: Final = re.compile(r"Force fallback to CPU execution for node: (?P<name>\S+) because")
_QNN_BLOCK: Final = re.compile(
    r"Validation FAILED for \d+ nodes in OrtNodeUnit \(.*\) ?:\n"
    r"(?P<nodes>(?:\s*Operator type: .*\n)+)\s*REASON : (?P<reason>.*)"
)
_QNN_NODE: Final = re.compile(r"Operator type: \S* Node name: (?P<name>\S+) Node index")
_QNN_REST: Final = re.compile(r"\.?[^.]* node `[^`]*` will not be assigned to QNN EP\.?")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_MEANINGS: Final[Mapping[str, str]] = {
    "Cannot get shape": "a dimension of its tensors is open",
}


def reasons_in(log: str) -> dict[str, str]:
    """The reason for each node that was refused by name, as far as a verbose `log` of the creation
    of a session tells; the first that was given counts. One line each, without folders."""
    found: dict[str, str] = {}
    for name, reason in _said(_COLOUR.sub("", log)):
        found.setdefault(name, reason)
    return found


def _said(log: str) -> Iterator[tuple[str, str]]:
    for match in _NO_KERNEL.finditer(log):
        yield match["name"], f"the provider has no kernel for {match['operator']} of these types"
    for match in _QNN_BLOCK.finditer(log):
        text = reason_of(RuntimeError(_QNN_REST.sub("", match["reason"]))).rstrip(".")
        reason = f"the provider says: {_MEANINGS.get(text, text)}"
        for node in _QNN_NODE.finditer(match["nodes"]):
            yield node["name"], reason
    for match in _SMALL.finditer(log):
        yield (
            match["name"],
            "ONNX Runtime holds the processor to be quicker for it: it works on shapes",
        )
