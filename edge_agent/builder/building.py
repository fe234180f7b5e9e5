"""From a model of the store to a plan that is ready to serve."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edge_agent.builder.benches import PartBench, Slices, Subject, WholeBench
from edge_agent.builder.compiler import Compiler
from edge_agent.builder.pooling import pooled
from edge_agent.builder.specialised import compare_with_general, judged
from edge_agent.builder.specs import inner_specs
from edge_agent.builder.workshop import Workshop
from edge_agent.config import Settings
from edge_agent.devices import ComputeUnit, Device, Layout
from edge_agent.engine.cancel import cancelled_after
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import EdgeAgentError, ModelRefused, RuntimeUnavailable, StorageError
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from edge_agent.model.weights import fingerprint
from edge_agent.planning.partition import choose, divide_into
from edge_agent.planning.score import ProcessorRates
from edge_agent.plans import CandidatePlan, ExecutionPlan, Target
from edge_agent.profiles import Configuration, LatencyProfile
from edge_agent.profiling.device import device_key, is_large, measure_rates, this_device
from edge_agent.profiling.keep import (
    decode_profile,
    decode_verification,
    encode_profile,
    encode_verification,
)
from edge_agent.profiling.profiler import profile
from edge_agent.profiling.verify import Verification, explained, verify
from edge_agent.samples import random_arrays, sample_bytes
from edge_agent.store.models import ModelStore
from edge_agent.store.pool import POOL_FOLDER, Pool
from edge_agent.store.records import ProfileKey, ProfileStore
from edge_agent.subgraphs import ModelSummary, SegmentRange
from edge_agent.telemetry import host
from edge_agent.tensors import Arrays, Shape, TensorName, ValueSpecs
from edge_agent.wire.messages import Build, Built, General, SubgraphFile

log = logging.getLogger(__name__)

CANDIDATES = 8
SAMPLES = 2
OPEN_SIZES = (64, 224, 16, 320, 48, 128, 1, 512, 2)
"""Sizes tried for dimensions that the model leaves open, until it runs."""
SAMPLE_RUN_S = 60.0
"""A model that takes longer than this once could not be measured within any budget; and one that
never ends must not keep the others from their plans."""

_QUANTISED_OPERATORS = frozenset(
    {
        "QuantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "MatMulInteger",
        "ConvInteger",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "QAttention",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Inputs that the model runs on."""

    arrays: tuple[Arrays, ...]
    shapes: dict[TensorName, Shape]


def find_samples(
    session: Session,
    given: Mapping[TensorName, Shape],
    max_bytes: int,
    *,
    seed: int = 0,
    run_s: float = SAMPLE_RUN_S,
) -> Samples | None:
    """Made-up inputs that the model runs on, for the given shapes or for sizes that are tried;
    None if it runs on none of them of at most `max_bytes` bytes within `run_s` seconds."""
    rng = np.random.default_rng(seed)
    for open_size in OPEN_SIZES:
        if sample_bytes(session.inputs, given, open_size) > max_bytes:
            continue
        arrays = tuple(random_arrays(session.inputs, given, rng, open_size) for _ in range(SAMPLES))
        try:
            for sample in arrays:
                with cancelled_after(run_s) as cancel:
                    session.run(sample, session.output_names, cancel)
        except EdgeAgentError as error:
            log.info("does not run with open dimensions of %d: %s", open_size, error)
            if all(spec.is_static or spec.name in given for spec in session.inputs):
                return None
            continue
        tensors = [spec.name for spec in session.inputs if not spec.container]
        shapes = {name: arrays[0][name].shape for name in tensors if name in arrays[0]}
        return Samples(arrays=arrays, shapes=shapes)
    return None


def configurations(unit: ComputeUnit, target: Target, cores: int) -> tuple[Configuration, ...]:
    """What may be measured on a unit: every layout, with thread counts up to `cores`.

    For latency one run at a time; for throughput as many at once as the cores allow.
    """
    counts = sorted({1, *(2**i for i in range(1, 11) if 2**i < cores), cores})
    return tuple(
        Configuration(
            unit=unit.id,
            layout=layout,
            threads=threads,
            instances=1 if target is Target.LATENCY else max(1, cores // threads),
        )
        for layout in unit.layouts
        for threads in counts
    )


class Building:
    """One build: the model, the device, and what has been found out so far."""

    def __init__(self, message: Build, settings: Settings, slices: Slices) -> None:
        self._message = message
        self._slices = slices
        self._budgets = settings.planning
        self._max_sample_bytes = settings.limits.max_request_bytes
        self._models = ModelStore(settings.state)
        self._pool = Pool(settings.state / POOL_FOLDER, settings.limits.max_compiled_bytes)
        self._profiles = ProfileStore(settings.cache)
        self._device_key = device_key()

    def build(self) -> Built:
        """Divide, compile, profile, plan, verify.

        Raises:
            EdgeAgentError: the model cannot be run at all.
        """
        self._slices.progress(0.0, "reading the model")
        entry = pooled(self._message.model, self._models, self._pool)
        with entry:
            return self._build(entry.graph, is_large(entry.manifest.weight_bytes))

    def _build(self, path: Path, is_large: bool) -> Built:
        slices = self._slices
        graph = ModelGraph.load(path)
        device = this_device()
        threads = self._message.threads
        cores = device.cores if threads is None else device.cores[:threads]
        plain = Session.open(
            path, threads=threads, level=OptimisationLevel.ALL, plain=True, lean=is_large
        )
        samples = find_samples(plain, dict(self._message.shapes), self._max_sample_bytes)
        inputs, outputs = (*plain.inputs, *plain.overridable), plain.outputs
        del plain
        shapes = samples.shapes if samples is not None else {}
        with Compiler(self._pool, self._message.model, self._device_key) as compiler:
            specs = inner_specs(graph, shapes, compiler.draft("probe.onnx"))
            summary = summarise(graph, self._message.model, shapes, specs)
            is_fixed = self._message.general is not None
            known = specs if is_fixed else general_specs(graph, specs)
            workshop = Workshop(
                graph, summary, known, compiler, is_large=is_large, is_fixed=is_fixed
            )
            if samples is None:
                plan, chosen = self._unprofiled(summary), None
                is_used = not is_fixed
            else:
                subject = Subject(
                    workshop=workshop,
                    samples=samples.arrays,
                    cores=cores,
                    plain_threads=threads,
                    is_quantised=is_quantised(graph),
                )
                plan, chosen, is_used = self._plan(summary, subject, device)
            slices.progress(1.0, "storing the compiled subgraphs")
            files = self._files(workshop, chosen) if is_used else ()
        return Built(
            plan=plan,
            subgraphs=files,
            instances=chosen.instances if chosen is not None else self._plain_callers(cores),
            pinned_cores=cores if chosen is not None else (),
            inputs=inputs,
            outputs=outputs,
            opens_aside=device.units[0].opens_aside,
            is_large=is_large,
        )

    def _plan(
        self, summary: ModelSummary, subject: Subject, device: Device
    ) -> tuple[ExecutionPlan, CandidatePlan | None, bool]:
        """The plan, what runs unless it is plain ONNX Runtime, and whether it is to be used."""
        message = self._message
        rates = measure_rates()
        state = host.state()
        plain = Configuration(
            unit=device.units[0].id,
            layout=Layout.BLOCKED,
            threads=message.threads or len(subject.cores),
        )
        profiled = self._profile(summary, subject, device, rates)
        verification = self._verified(summary, profiled, subject)
        plan = explained(
            verification,
            summary,
            profiled,
            target=message.target,
            plain=plain,
            state=state,
            processor=rates,
        )
        chosen = verification.chosen
        if message.general is None:
            return plan, chosen, True
        against = None
        if not message.general.is_plain:
            against = self._against_general(message.general, verification, summary, subject)
        plan, is_used = judged(plan, verification, against)
        return plan, chosen, is_used

    def _against_general(
        self,
        general: General,
        verification: Verification,
        summary: ModelSummary,
        subject: Subject,
    ) -> Verification:
        """What was found out of the general plan for these shapes before, or is found out now."""
        files = ", ".join(f"{f.path} {f.threads}t" for f in general.subgraphs)
        what = f"verified {verification.chosen or 'plain'} against {files}"
        return self._found_out(
            self._profile_key(summary, subject, what),
            lambda: compare_with_general(
                general,
                verification,
                subject,
                self._slices,
                self._plain_callers(subject.cores),
                self._budgets.verify_s / 2,
            ),
        )

    def _verified(
        self, summary: ModelSummary, profiled: LatencyProfile, subject: Subject
    ) -> Verification:
        """What was found out about these candidates before, or is found out now."""
        wanted = self._message.subgraphs
        if wanted is None:
            profiled, candidates = self._candidates(summary, profiled, subject.workshop)
        else:
            candidates = (self._divided_into(wanted, summary, profiled, subject.workshop),)
        key = self._profile_key(summary, subject, f"verified {candidates}")
        return self._found_out(key, lambda: self._verify(candidates, subject))

    def _found_out(self, key: ProfileKey, find_out: Callable[[], Verification]) -> Verification:
        """What is kept under `key`, or what is found out now and kept from then on."""
        kept = None if self._message.is_fresh else self._profiles.get(key)
        if kept is not None:
            try:
                return decode_verification(kept)
            except StorageError as error:
                log.warning("%s", error)
        found = find_out()
        self._profiles.put(key, encode_verification(found))
        return found

    def _verify(self, candidates: tuple[CandidatePlan, ...], subject: Subject) -> Verification:
        slices = self._slices
        slices.first_fraction, slices.last_fraction = 0.6, 0.95
        slices.progress(0.0, "comparing the best plans with plain ONNX Runtime")
        verification = verify(
            candidates,
            WholeBench(subject, slices, self._plain_callers(subject.cores)),
            budget_s=self._budgets.verify_s,
            rng=random.Random(0),
            clock_s=slices.working_s,
        )
        if self._message.subgraphs is not None:
            verification = as_wanted(verification, candidates[0])
        return verification

    def _divided_into(
        self, count: int, summary: ModelSummary, profiled: LatencyProfile, workshop: Workshop
    ) -> CandidatePlan:
        while True:
            plan = divide_into(summary, profiled, self._message.target, count)
            if plan is None:
                raise ModelRefused(
                    f"it cannot be divided into {count} subgraphs: it has "
                    f"{len(summary.segments)} segments"
                    + (f" ({summary.undivided_because})" if summary.undivided_because else "")
                    + "; load it with fewer, or without --subgraphs"
                )
            formless = formless_configurations(plan, workshop)
            if not formless:
                return plan
            profiled = without_parts(profiled, formless)

    def _profile_key(self, summary: ModelSummary, subject: Subject, what: str) -> ProfileKey:
        """`what` was measured of this graph with these weights, for these shapes, on this device,
        with the threads and instances that follow from target and cores."""
        cores = len(subject.cores)
        fixed = "; fixed dimensions" if self._message.general is not None else ""
        return ProfileKey(
            content=fingerprint(subject.workshop.graph.path),
            shapes=summary.shapes,
            device_key=f"{self._device_key}; {self._message.target}; {cores} cores; {what}{fixed}",
        )

    def _candidates(
        self, summary: ModelSummary, profiled: LatencyProfile, workshop: Workshop
    ) -> tuple[LatencyProfile, tuple[CandidatePlan, ...]]:
        """The best plans whose every part can be had in its layout.

        The parts that were measured had their layout; smaller ones may not, and then the
        configuration is not used for parts at all.
        """
        while True:
            candidates = choose(summary, profiled, self._message.target, CANDIDATES)
            formless = {
                configuration
                for plan in candidates
                for configuration in formless_configurations(plan, workshop)
            }
            if not formless:
                return profiled, candidates
            profiled = without_parts(profiled, formless)

    def _profile(
        self, summary: ModelSummary, subject: Subject, device: Device, rates: ProcessorRates
    ) -> LatencyProfile:
        """The kept profile of this model and device, or a new one."""
        message, slices = self._message, self._slices
        wanted = tuple(
            c
            for unit in device.units
            for c in configurations(unit, message.target, len(subject.cores))
        )
        key = self._profile_key(summary, subject, "profiled")
        kept = None if message.is_fresh else self._profiles.get(key)
        if kept is not None:
            try:
                return decode_profile(kept)
            except StorageError as error:
                log.warning("%s", error)
        slices.first_fraction, slices.last_fraction = 0.05, 0.6
        made = profile(
            summary,
            wanted,
            PartBench(subject, slices),
            budget_s=self._budgets.profile_s,
            rng=random.Random(0),
            device_key=self._device_key,
            state=host.state(),
            processor=rates,
            clock_s=slices.working_s,
        )
        self._profiles.put(key, encode_profile(made))
        return made

    def _unprofiled(self, summary: ModelSummary) -> ExecutionPlan:
        is_fixed = self._message.general is not None
        shapes = ", ".join(
            f"--shape {spec.name}=SIZES"
            for spec in summary.inputs
            if not (spec.is_static or spec.has_default or is_fixed)
        )
        return ExecutionPlan(
            model=summary.model,
            target=self._message.target,
            shapes=self._message.shapes if is_fixed else (),
            subgraphs=(),
            is_plain=True,
            reason=(
                "it does not run on made-up inputs, so nothing could be measured"
                + (f": load it with {shapes}" if shapes else "")
            ),
            predicted_s=None,
            measured_s=None,
            plain_s=None,
            plain_over_plan=None,
            rejections=(),
            undivided_because=summary.undivided_because,
            profiling_s=0.0,
            is_specialised=is_fixed,
        )

    def _plain_callers(self, cores: tuple[int, ...]) -> int:
        """How many requests plain ONNX Runtime runs at once, as a user's threads would."""
        return 1 if self._message.target is Target.LATENCY else len(cores)

    # ---- what a worker opens

    def _files(self, workshop: Workshop, chosen: CandidatePlan | None) -> tuple[SubgraphFile, ...]:
        if chosen is None and self._message.general is not None:
            return (self._model_file(workshop),)  # as it was measured: with open dimensions
        if chosen is None:
            return (self._plain_file(workshop),)
        return tuple(
            self._compiled_file(
                workshop.compiled(s.segments, s.configuration.layout),
                s.configuration.threads,
                is_plain=False,
            )
            for s in chosen.subgraphs
        )

    def _plain_file(self, workshop: Workshop) -> SubgraphFile:
        """The whole model, compiled where that is possible: equal, and opened much quicker."""
        whole = SegmentRange(start=0, stop=len(workshop.summary.segments))
        try:
            graph = workshop.compiled(whole, Layout.BLOCKED)
        except (ModelRefused, RuntimeUnavailable) as error:
            log.info("it is opened from the model each time: %s", error)
            return self._model_file(workshop)
        return self._compiled_file(graph, self._message.threads, is_plain=True)

    def _model_file(self, workshop: Workshop) -> SubgraphFile:
        return SubgraphFile(
            path=str(workshop.graph.path),
            level=OptimisationLevel.ALL.value,
            threads=self._message.threads,
            is_plain=True,
        )

    def _compiled_file(self, graph: Path, threads: int | None, *, is_plain: bool) -> SubgraphFile:
        return SubgraphFile(
            path=str(graph),
            level=OptimisationLevel.NONE.value,
            threads=threads,
            is_plain=is_plain,
            compiled_for=self._device_key,
        )


def formless_configurations(plan: CandidatePlan, workshop: Workshop) -> set[Configuration]:
    """Configurations in which a part of the plan cannot be had."""
    if len(plan.subgraphs) == 1:
        return set()
    return {
        s.configuration
        for s in plan.subgraphs
        if not workshop.has_form(s.segments, s.configuration.layout)
    }


def without_parts(profiled: LatencyProfile, formless: Set[Configuration]) -> LatencyProfile:
    """The profile with these configurations for the whole model only."""
    times = tuple(
        replace(t, is_divisible=t.is_divisible and t.configuration not in formless)
        for t in profiled.times
    )
    return replace(profiled, times=times)


def as_wanted(verification: Verification, plan: CandidatePlan) -> Verification:
    """The verification of a division that the user wants, whether it pays or not.

    Raises:
        ModelRefused: its answers are wrong, or it cannot be run.
    """
    if verification.ratio is None:
        details = "; ".join(f"{r.reason}: {r.detail}" for r in verification.rejections)
        raise ModelRefused(f"the division into {len(plan.subgraphs)} cannot be used: {details}")
    return replace(
        verification,
        chosen=plan,
        reason=f"divided into {len(plan.subgraphs)} as asked, whether it pays or not",
        rejections=tuple(r for r in verification.rejections if r.candidate != str(plan)),
    )


def general_specs(graph: ModelGraph, specs: ValueSpecs) -> ValueSpecs:
    """`specs` without the sizes that only hold for the shapes in use.

    What a worker opens must serve every shape that the model allows, and ONNX Runtime believes
    the sizes that a file declares: it would compute `Shape` once and for all.
    """
    general = infer_specs(graph, {}).tensors
    return ValueSpecs(
        tensors={
            name: general.get(name, replace(spec, dims=None))
            for name, spec in specs.tensors.items()
        },
        others=specs.others,
    )


def is_quantised(graph: ModelGraph) -> bool:
    """Whether the model computes with quantised operators anywhere."""
    return any(node.op_type in _QUANTISED_OPERATORS for node in graph.nodes)
