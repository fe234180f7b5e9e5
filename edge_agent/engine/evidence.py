"""Which nodes of a model a provider takes when it is given the whole, by evidence, and why not.

Three things tell, none of them everywhere (measured). The assignment record of a session is
complete for the CPU provider (ONNX Runtime 1.24 to 1.32), OpenVINO's (1.24) and QNN's (2.7 with
1.27); for WebGPU 1.27 it holds 2 of 66 nodes. A session that opens with the CPU fallback forbidden
has all nodes of the main graph on its provider, but may have bodies of If and Loop elsewhere. The
profile of a run names each kernel with its provider, but only what is left after fusion (and
blocked kernels of the processor after values), and for providers that compile a graph one kernel
for all of it.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_agent.devices import ProviderUse, UnitId
from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.listening import listening
from edge_agent.engine.placing import create, kernels, record, recorded
from edge_agent.engine.providers import known_provider
from edge_agent.engine.reasons import reasons_in
from edge_agent.engine.refusals import loading
from edge_agent.engine.runtime import CPU, FATAL_ONLY, runtime_errors
from edge_agent.engine.session import OptimisationLevel, Session, session_options
from edge_agent.profiles import Placement, RefusedNode
from edge_agent.tensors import Arrays

RECORD: Final = "assignment record"
WHOLE: Final = "it opens with fallback forbidden"
PROFILE: Final = "profile of one run"
UNOPENED: Final = "no session opens on it"
NOT_SAID: Final = "the provider did not take it and does not say why"
_SEPARATORS: Final = re.compile("[^0-9A-Za-z]+")
_WORD: Final = re.compile("[0-9A-Za-z]+")
_MOST_CHARACTERS: Final = 300
"""Of a reason: some providers tell the types of the whole graph."""
_VERBOSE: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where each node of a model ran."""

    provider: str
    """That was given the whole model."""
    names: tuple[str, ...]
    """Of the nodes in the file, by position."""
    ran_on: tuple[str, ...]
    """The provider of each node, by position; "" for one that is seen nowhere: it was computed on
    loading, or made part of others."""
    reasons: tuple[str, ...]
    """Why a node is not on `provider`, as far as it was said; "" else."""
    how: str
    """RECORD, WHOLE or PROFILE."""


def placement_of(
    path: Path,
    use: ProviderUse,
    names: Sequence[str],
    feeds: Arrays,
    cancel: Cancellation | None = None,
) -> Evidence:
    """Which of the nodes `names` of the model at `path` that provider takes.

    `names` are those of the nodes by position, no two alike, of letters and digits; nodes inside
    of the node `n1` are named `n1.…`. The model is opened wholly on the provider if it can be,
    else with fallback to the processor, and run once on `feeds` where nothing else tells; `cancel`
    stops that run between two kernels. For a process of its own: providers crash and hang, and
    what this process prints meanwhile is kept from its stdout and stderr.

    Raises: ModelRefused if no session opens, RuntimeUnavailable; InputMismatch for `feeds` that the
        model does not take; RunFailed; the reason of `cancel`.
    """
    places, expected = _Places(names), _asked_for(path, names)
    is_whole = _opens_whole(path, use)
    if is_whole and not any(places.is_inside(name) for name in expected):
        places.add({use.provider: expected})
        return _evidence(places, names, use, WHOLE, {})
    with listening() as heard:
        places.add(_recorded(path, use, is_whole))
    how = RECORD
    if not places.holds(expected):
        places.add(profiled(path, use, is_whole, feeds, cancel))
        how = PROFILE
    return _evidence(places, names, use, how, reasons_in(heard.text))


def _evidence(
    places: _Places, names: Sequence[str], use: ProviderUse, how: str, reasons: Mapping[str, str]
) -> Evidence:
    said = places.by_node(reasons)
    ran_on = tuple(places.of(name, use.provider) for name in names)
    return Evidence(
        provider=use.provider,
        names=tuple(names),
        ran_on=ran_on,
        reasons=tuple(
            "" if where in ("", use.provider) else said.get(name, "")
            for name, where in zip(names, ran_on, strict=True)
        ),
        how=how,
    )


class _Places:
    """Where the nodes of the model were seen, those inside of a node counting with it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._own: dict[str, set[str]] = {}
        self._inside: dict[str, set[str]] = {}

    def add(self, found: Mapping[str, Iterable[str]]) -> None:
        """Note names of nodes, as ONNX Runtime may have made them, by provider."""
        for provider, names in found.items():
            for name in names:
                if node := self._node(name):
                    into = self._inside if self.is_inside(name) else self._own
                    into.setdefault(node, set()).add(provider)

    def _node(self, name: str) -> str:
        """The node that one with a made name comes from: `n5_token_15`, `n4/duplicated`."""
        return next((part for part in _SEPARATORS.split(name) if part in self._names), "")

    def is_inside(self, name: str) -> bool:
        """Whether it is inside of a node of the model: `n5.2`, or `_inlfunc_n5_n5.2`."""
        node = self._node(name)
        return bool(node) and f"{node}." in name

    def holds(self, expected: Iterable[str]) -> bool:
        """Whether all of these nodes, or what they come from, were seen."""
        return all(
            node in (self._inside if self.is_inside(name) else self._own)
            for name in expected
            if (node := self._node(name))
        )

    def of(self, name: str, provider: str) -> str:
        """Where a node ran: on `provider` only if all of it did; "" if it was seen nowhere."""
        seen = self._own.get(name, set()) | self._inside.get(name, set())
        return min(seen - {provider}, default=provider if seen else "")

    def by_node(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """The first reason that was given for each node, or else for one inside of it; the names
        in `reasons` are made ones too."""
        found: dict[str, str] = {}
        for name in sorted(reasons, key=self.is_inside):
            if node := self._node(name):
                within = "inside of it: " if self.is_inside(name) else ""
                found.setdefault(node, within + reasons[name])
        return found


def _asked_for(path: Path, names: Sequence[str]) -> Sequence[str]:
    """The nodes that ONNX Runtime asks providers about: those that it did not compute before."""
    options = _silent_options()
    options.add_session_config_entry("session.disable_prepacking", "1")
    record(options)
    try:
        session = create(path, options)
    except runtime_errors():
        return names
    return tuple(itertools.chain(*recorded(session).values())) or names


def _opens_whole(path: Path, use: ProviderUse) -> bool:
    try:
        create(path, _silent_options(), use)
    except runtime_errors():
        return False
    return True


def _recorded(path: Path, use: ProviderUse, is_whole: bool) -> Mapping[str, Iterable[str]]:
    options = _silent_options()
    options.log_severity_level = _VERBOSE
    record(options)
    with loading(path):
        return recorded(create(path, options, use, is_whole=is_whole))


def profiled(
    path: Path, use: ProviderUse, is_whole: bool, feeds: Arrays, cancel: Cancellation | None
) -> Mapping[str, Iterable[str]]:
    """Names of the nodes whose kernels ran in one run on `feeds`, as ONNX Runtime made them of
    those of the model at `path`, by provider; `is_whole` as for `create`.

    Raises: as `placement_of`.
    """
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        options = _silent_options()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "run")
        with loading(path):
            inner = create(path, options, use, is_whole=is_whole)
        session = Session(inner, path, None)
        try:
            session.run(feeds, session.output_names, cancel)
        finally:
            # Else the session writes its profile when it ends, and the folder is gone.
            profile = Path(inner.end_profiling())
        return kernels(json.loads(profile.read_bytes()))


def _silent_options() -> Any:
    options = session_options(OptimisationLevel.ALL, threads=1)
    options.log_severity_level = FATAL_ONLY
    return options


def placed(
    unit: UnitId, evidence: Evidence, labels: Sequence[str], rules: Sequence[str]
) -> Placement:
    """What is kept and shown of `evidence`.

    `labels` and `rules` are by position: how a node is named to people, and why the unit does not
    take it by what is known of the unit ("" if nothing is).
    """
    refused = tuple(
        RefusedNode(
            position=position,
            label=labels[position],
            ran_on=_unit_of(where),
            reason=_for_people(evidence.reasons[position], evidence.names, labels)
            or rules[position]
            or NOT_SAID,
        )
        for position, where in enumerate(evidence.ran_on)
        if where not in ("", evidence.provider)
    )
    return Placement(
        unit=unit,
        taken=evidence.ran_on.count(evidence.provider),
        refused=refused,
        removed=evidence.ran_on.count(""),
        evidence=evidence.how,
    )


def refused_whole(
    unit: UnitId, names: Sequence[str], labels: Sequence[str], reason: str
) -> Placement:
    """What is kept and shown of a model of which no session opens on the unit, because of
    `reason`: none of its nodes can run there while they are together."""
    shown = _for_people(reason, names, labels)
    cpu = _unit_of(CPU)
    return Placement(
        unit=unit,
        taken=0,
        refused=tuple(
            RefusedNode(position=position, label=label, ran_on=cpu, reason=shown)
            for position, label in enumerate(labels)
        ),
        removed=0,
        evidence=UNOPENED,
    )


def _for_people(reason: str, names: Sequence[str], labels: Sequence[str]) -> str:
    """`reason` with nodes called by their labels, of bearable length."""
    known = dict(zip(names, labels, strict=True))
    text = _WORD.sub(lambda word: known.get(word[0], word[0]), reason)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _unit_of(provider: str) -> str:
    known = known_provider(provider)
    return provider if known is None else known.unit
