"""From a model of the store to a plan that is ready to serve."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from edge_agent.builder.allowed import allow, host_unit, pinned_segments
from edge_agent.builder.benches import PartBench, Slices, Subject, WholeBench
from edge_agent.builder.compiler import Compiler
from edge_agent.builder.ends import Ends, ends_of
from edge_agent.builder.looking import look
from edge_agent.builder.made_up import Samples
from edge_agent.builder.plan_files import PlanFiles
from edge_agent.builder.pooling import pooled
from edge_agent.builder.quantised import is_quantised
from edge_agent.builder.sampling import Sampling
from edge_agent.builder.specialised import compare_with_general, judged
from edge_agent.builder.specs import fixed_shapes, general_specs, inner_specs
from edge_agent.builder.stage_graph import check_nodes
from edge_agent.builder.stage_samples import stage_samples
from edge_agent.builder.workshop import Workshop
from edge_agent.config import Settings
from edge_agent.devices import Device, Layout, UnitId
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused, StorageError
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.model.pins import parted, pinned_units
from edge_agent.model.weights import fingerprint
from edge_agent.planning.partition import choose, divide_into
from edge_agent.planning.score import ProcessorRates
from edge_agent.plans import CandidatePlan, ExecutionPlan, Pin, Target, unusable_pin
from edge_agent.profiles import (
    HOST_UNIT,
    Configuration,
    LatencyProfile,
    Rejection,
    SegmentTimes,
)
from edge_agent.profiling.device import device_key, is_large, measure_rates, this_device
from edge_agent.profiling.keep import (
    decode_profile,
    decode_verification,
    encode_profile,
    encode_verification,
)
from edge_agent.profiling.profiler import profile
from edge_agent.profiling.verify import MEASURED, Verification, explained, shortlist, verify
from edge_agent.store.manifests import Manifest
from edge_agent.store.models import ModelStore
from edge_agent.store.pool import POOL_FOLDER, Pool
from edge_agent.store.profiled import ProfiledModel, ProfiledStore
from edge_agent.store.records import ProfileKey, ProfileStore
from edge_agent.summaries import ModelSummary
from edge_agent.telemetry import host
from edge_agent.tensors import Shape, TensorName
from edge_agent.wire.messages import (
    Build,
    Built,
)
from edge_agent.wire.parts import (
    General,
)

log = logging.getLogger(__name__)

CANDIDATES = 8
_SHOWN_REFUSED = 3


class Building:
    """One build: the model, the device, and what has been found out so far."""

    def __init__(self, message: Build, settings: Settings, slices: Slices) -> None:
        self._message = message
        self._slices = slices
        self._settings = settings
        self._budgets = settings.planning
        self._models = ModelStore(settings.state)
        self._pool = Pool(settings.state / POOL_FOLDER, settings.limits.max_compiled_bytes)
        self._profiles = ProfileStore(settings.cache)
        self._device_key = device_key()
        self._pinned_nodes: tuple[UnitId | None, ...] = ()
        """The unit that each node is pinned to."""
        self._given_key = ""
        """Which real inputs are used, as a part of keys."""
        self._ends: Ends
        self._formless: set[Configuration] = set()
        """In which a part that was wanted cannot be had."""
        self._times: tuple[SegmentTimes, ...] = ()
        """Of the segments of a stage."""

    def build(self) -> Built:
        """Divide, compile, profile, plan, verify.

        Raises:
            EdgeAgentError: the model cannot be run at all.
        """
        self._slices.progress(0.0, "reading the model")
        entry = pooled(self._message.model, self._models, self._pool)
        with entry:
            return self._build(entry.graph, is_large(self._weight_bytes(entry.manifest)))

    def _weight_bytes(self, manifest: Manifest) -> int:
        # With a stage lie its samples, which are no weights.
        stage = self._message.stage
        return manifest.weight_bytes if stage is None else sum(t.size_bytes for t in stage.tensors)

    def _build(self, path: Path, is_large: bool) -> Built:
        slices = self._slices
        graph = ModelGraph.load(path)
        message = self._message
        if message.stage is not None:
            assert message.model == message.stage.id
            check_nodes(message.stage, graph)
        device = message.device or this_device(self._settings)
        threads = message.threads
        banned = {b.unit: b.reason for b in message.banned if not b.is_keeping}
        pinned = self._pinned_nodes = pinned_units(graph, message.pins)
        if reason := unusable_pin(message.pins, device, banned):
            raise ModelRefused(reason)
        cores = device.cores if threads is None else device.cores[:threads]
        plain = Session.open(
            path, threads=threads, level=OptimisationLevel.ALL, plain=True, lean=is_large
        )
        samples = self._samples(plain, fixed_shapes(graph))
        inputs, outputs = (*plain.inputs, *plain.overridable), plain.outputs
        del plain
        shapes = samples.shapes if samples is not None else {}
        with Compiler(self._pool, self._message.model, self._device_key) as compiler:
            specs = inner_specs(graph, shapes, compiler.draft("probe.onnx"))
            summary = summarise(
                graph,
                message.model,
                shapes,
                specs,
                apart=parted(pinned),
                starts=None if message.stage is None else message.stage.starts,
            )
            if message.subgraphs is not None and message.subgraphs > len(summary.segments):
                raise _too_few_segments(summary, message.subgraphs)
            is_fixed = message.general is not None
            known = specs if is_fixed else general_specs(graph, specs)
            workshop = Workshop(
                graph, summary, known, compiler, is_large=is_large, is_fixed=is_fixed
            )
            self._ends = ends_of(graph, shapes, specs)
            if samples is None:
                plan, chosen = self._unprofiled(summary), None
                is_used = not is_fixed
            else:
                # What was measured before is not measured again, and then nothing else feeds it.
                workshop.feed(samples.arrays[0])
                subject = Subject(
                    workshop=workshop,
                    samples=samples.arrays,
                    cores=cores,
                    plain_threads=threads,
                    is_quantised=is_quantised(graph),
                    units=tuple(u for u in device.units if u.id not in {HOST_UNIT, *banned}),
                    is_patient=message.is_forced,
                    half_bound=message.half_bound,
                    pinned=pinned_segments(summary, pinned, graph.label),
                )
                plan, chosen, is_used = self._plan(summary, subject, device)
            slices.progress(1.0, "storing the compiled subgraphs")
            making = PlanFiles(
                message, workshop, device, self._device_key, slices, self._budgets.unit_s
            )
            files = making.files(chosen, frozenset(plan.channels_last)) if is_used else ()
        is_aside = all(file.use is None for file in files)
        return Built(
            plan=plan,
            device=device,
            subgraphs=files,
            instances=chosen.instances if chosen is not None else self._plain_callers(cores),
            pinned_cores=cores if chosen is not None else (),
            inputs=inputs,
            outputs=outputs,
            opens_aside=host_unit(device).opens_aside and is_aside,
            is_large=is_large,
            times=self._times,
            device_key=self._device_key,
        )

    def _samples(self, session: Session, fixed: Mapping[TensorName, Shape]) -> Samples | None:
        """What is measured and compared on; `fixed` as for `Sampling.find`."""
        message, grant = self._message, self._slices.grant
        if message.stage is not None:
            self._given_key = f"; samples {[blob.sha256 for blob in message.stage.samples]}"
            return stage_samples(message.stage, session, self._pool, grant)
        sampling = Sampling(settings=self._settings, shapes=message.shapes, samples=message.samples)
        samples, given = sampling.find(session, fixed, grant)
        if given:
            self._given_key = f"; samples {message.samples}"
        return samples

    def _plan(
        self, summary: ModelSummary, subject: Subject, device: Device
    ) -> tuple[ExecutionPlan, CandidatePlan | None, bool]:
        """The plan, what runs unless it is plain ONNX Runtime, and whether it is to be used."""
        message = self._message
        rates = measure_rates()
        state = host.state()
        plain = Configuration(
            unit=HOST_UNIT,
            layout=Layout.BLOCKED,
            threads=message.threads or len(subject.cores),
        )
        profiled = self._profile(summary, subject, device, rates)
        verification = self._verified(summary, profiled, subject)
        self._keep(summary, profiled, device, subject)
        plan = explained(
            verification,
            summary,
            profiled,
            target=message.target,
            plain=plain,
            state=state,
            processor=rates,
        )
        plan = replace(plan, is_quantised=subject.is_quantised)
        chosen = verification.chosen
        if chosen is not None:
            with self._slices.trying({s.configuration.unit for s in chosen.subgraphs}):
                last = subject.workshop.last_between(chosen.subgraphs, subject.use)
            plan = replace(plan, channels_last=tuple(sorted(last)))
        if message.general is None:
            return plan, chosen, True
        against = None
        if not message.general.is_plain:
            against = self._against_general(message.general, verification, summary, subject)
        plan, is_used = judged(plan, verification, against)
        return plan, chosen, is_used

    def _keep(
        self, summary: ModelSummary, profiled: LatencyProfile, device: Device, subject: Subject
    ) -> None:
        """Keep what planning the model again takes."""
        profile = without_parts(profiled, self._formless)
        if self._message.stage is not None:
            self._times = profile.times  # its owner plans
        if self._message.name is None or self._message.general is not None:
            return
        found = ProfiledModel(
            summary=summary,
            profile=profile,
            device=device,
            cores=len(subject.cores),
            input_bytes=self._ends.input_bytes,
            output_bytes=self._ends.output_bytes,
            pinned=subject.pinned,
        )
        ProfiledStore(self._settings.state).save(self._message.name, found)

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
        message = self._message
        if message.subgraphs is not None:
            plan = self._divided_into(message.subgraphs, summary, profiled, subject.workshop)
            candidates: tuple[CandidatePlan, ...] = (plan,)
        else:
            profiled, candidates = self._candidates(summary, profiled, subject.workshop)
            if message.pins:
                return self._pinned(summary, profiled, candidates, subject)
        return self._verified_once(
            f"verified {candidates}", candidates, summary, subject, profiled.disturbed_fraction
        )

    def _pinned(
        self,
        summary: ModelSummary,
        profiled: LatencyProfile,
        candidates: Sequence[CandidatePlan],
        subject: Subject,
    ) -> Verification:
        """What was found out of the best candidate that gives the right answers.

        Raises: ModelRefused if there is none: the pins cannot hold.
        """
        reasons = []
        pins = _told(self._message.pins)
        for plan in candidates:
            what = f"verified {plan} for {pins}"  # what is kept names them
            try:
                return self._verified_once(what, (plan,), summary, subject)
            except ModelRefused as error:
                reasons.append(str(error))
        raise self._pins_refused(profiled, reasons)

    def _verified_once(
        self,
        what: str,
        candidates: tuple[CandidatePlan, ...],
        summary: ModelSummary,
        subject: Subject,
        disturbed_fraction: float = 0.0,
    ) -> Verification:
        key = self._profile_key(summary, subject, what)
        return self._found_out(key, lambda: self._verify(candidates, subject, disturbed_fraction))

    def _pins_refused(self, profiled: LatencyProfile, reasons: Sequence[str] = ()) -> ModelRefused:
        """What is raised where no plan holds all pins; `reasons` are those of plans that might."""
        measured = {times.configuration.unit for times in profiled.times}
        missing = {pin.unit for pin in self._message.pins} - measured
        refused = [
            f"{node.label} on {placement.unit}: {node.reason}"
            for placement in profiled.placements
            for node in placement.refused
            if self._pinned_nodes[node.position] == placement.unit
        ]
        if len(refused) > _SHOWN_REFUSED:
            refused[_SHOWN_REFUSED:] = [f"{len(refused) - _SHOWN_REFUSED} more nodes are refused"]
        unmeasured = (
            f"{r.candidate}: {r.reason}: {r.detail}"
            for r in profiled.rejections
            if any(unit in r.candidate for unit in missing)
        )
        because = "; ".join((*refused, *reasons, *unmeasured))
        if not because and self._message.subgraphs is not None:
            because = (
                f"no division into {self._message.subgraphs} subgraphs has them all; load it with "
                "another number, or without --subgraphs"
            )
        because = because or "no division has them all; pin fewer nodes"
        return ModelRefused(f"the pins {_told(self._message.pins)} cannot hold: {because}")

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

    def _verify(
        self,
        candidates: tuple[CandidatePlan, ...],
        subject: Subject,
        disturbed_fraction: float,
    ) -> Verification:
        slices = self._slices
        slices.first_fraction, slices.last_fraction = 0.6, 0.95
        slices.progress(0.0, "comparing the best plans with plain ONNX Runtime")
        measured, _ = shortlist(candidates, MEASURED, disturbed_fraction=disturbed_fraction)
        units = {HOST_UNIT, *(s.configuration.unit for p in measured for s in p.subgraphs)}
        bench = WholeBench(subject, slices, self._plain_callers(subject.cores))
        verification = verify(
            candidates,
            bench,
            budget_s=self._budgets.verify_s * len(units),
            disturbed_fraction=disturbed_fraction,
            rng=random.Random(0),
            clock_s=slices.working_s,
        )
        if self._message.is_forced:
            (plan,) = candidates
            verification = as_wanted(verification, plan, self._message.pins)
        return with_difference(verification, bench.differences, subject.half_bound)

    def _divided_into(
        self, count: int, summary: ModelSummary, profiled: LatencyProfile, workshop: Workshop
    ) -> CandidatePlan:
        while True:
            plan = divide_into(summary, profiled, self._message.target, count)
            if plan is None and self._message.pins:
                raise self._pins_refused(profiled)
            if plan is None:
                raise _too_few_segments(summary, count)
            formless = formless_configurations(plan, workshop)
            if not formless:
                return plan
            self._formless |= formless
            profiled = without_parts(profiled, formless)

    def _profile_key(self, summary: ModelSummary, subject: Subject, what: str) -> ProfileKey:
        """`what` was measured of this graph with these weights, for these shapes, on this device,
        with the threads and instances that follow from target and cores."""
        cores = len(subject.cores)
        # Pins part segments that would be one without them.
        starts = ",".join(str(segment.start) for segment in summary.segments)
        fixed = f"; segments from {starts}"
        fixed += "; fixed dimensions" if self._message.general is not None else ""
        fixed += self._given_key
        if subject.units:
            fixed += f"; units {subject.units}, pins {subject.pinned}"
            if subject.half_bound is not None:
                fixed += f", float16 within {subject.half_bound}"
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
            self._formless |= formless
            profiled = without_parts(profiled, formless)

    def _profile(
        self, summary: ModelSummary, subject: Subject, device: Device, rates: ProcessorRates
    ) -> LatencyProfile:
        """The kept profile of this model and device, or a new one."""
        message, slices = self._message, self._slices
        key = self._profile_key(summary, subject, "profiled")
        kept = None if message.is_fresh else self._profiles.get(key)
        if kept is not None:
            try:
                return self._without_banned(decode_profile(kept))
            except StorageError as error:
                log.warning("%s", error)
        slices.first_fraction, slices.last_fraction = 0.02, 0.05
        found = allow(
            summary,
            (host_unit(device), *subject.units),
            lambda unit: look(unit, subject, slices),
            target=message.target,
            cores=len(subject.cores),
            pinned=subject.pinned,
            is_fixed=subject.workshop.is_fixed,
            is_half=subject.half_bound is not None,
        )
        slices.first_fraction, slices.last_fraction = 0.05, 0.6
        made = profile(
            summary,
            found.configurations,
            PartBench(subject, slices),
            target=message.target,
            budget_s=self._budgets.profile_s * len({c.unit for c in found.configurations}),
            rng=random.Random(0),
            device_key=self._device_key,
            state=host.state(),
            processor=rates,
            refused=found.refused,
            placements=tuple(found.placements),
            wanted=[pin.unit for pin in message.pins if pin.unit != HOST_UNIT],
            clock_s=slices.working_s,
        )
        made = replace(made, rejections=(*found.rejections, *made.rejections))
        self._profiles.put(key, encode_profile(made))
        return self._without_banned(made)

    def _without_banned(self, profiled: LatencyProfile) -> LatencyProfile:
        """The profile with the reasons why units are banned now."""
        banned = (
            Rejection(candidate=b.unit, reason="failed", detail=b.reason)
            for b in self._message.banned
            if not b.is_keeping
        )
        return replace(profiled, rejections=(*banned, *profiled.rejections))

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
                + (f": load it with {shapes}, or" if shapes else ": load it")
                + " with --samples DIR"
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


def _too_few_segments(summary: ModelSummary, count: int) -> ModelRefused:
    because = f" ({summary.undivided_because})" if summary.undivided_because else ""
    return ModelRefused(
        f"it cannot be divided into {count} subgraphs: it has {len(summary.segments)} "
        f"segments{because}; load it with fewer, or without --subgraphs"
    )


def formless_configurations(plan: CandidatePlan, workshop: Workshop) -> set[Configuration]:
    """Configurations in which a part of the plan cannot be had."""
    if len(plan.subgraphs) == 1:
        return set()
    return {
        s.configuration
        for s in plan.subgraphs
        if not workshop.has_form(s.segments, s.configuration)
    }


def without_parts(profiled: LatencyProfile, formless: Set[Configuration]) -> LatencyProfile:
    """The profile with these configurations for the whole model only."""
    times = tuple(
        replace(t, is_divisible=t.is_divisible and t.configuration not in formless)
        for t in profiled.times
    )
    return replace(profiled, times=times)


def _told(pins: Sequence[Pin]) -> str:
    return ", ".join(map(str, pins))


def as_wanted(
    verification: Verification, plan: CandidatePlan, pins: Sequence[Pin] = ()
) -> Verification:
    """The verification of a division or pins that the user wants, whether it pays or not.

    Raises:
        ModelRefused: its answers are wrong, or it cannot be run.
    """
    if verification.ratio is None:
        details = "; ".join(f"{r.reason}: {r.detail}" for r in verification.rejections)
        raise ModelRefused(f"{plan} cannot be used: {details}")
    what = f"pinned by {_told(pins)}" if pins else f"divided into {len(plan.subgraphs)}"
    return replace(
        verification,
        chosen=plan,
        reason=f"{what} as asked, whether it pays or not",
        rejections=tuple(r for r in verification.rejections if r.candidate != str(plan)),
    )


def with_difference(
    verification: Verification, differences: Mapping[CandidatePlan, float], bound: float | None
) -> Verification:
    """The verification that says how far off its plan was, if that computes in float16."""
    chosen = verification.chosen
    if chosen is None or chosen not in differences:
        return verification
    told = (
        f"in float16, outputs were off by at most {differences[chosen]:.2g} of their range, where "
        f"{bound:g} is allowed"
    )
    return replace(verification, reason=f"{verification.reason}; {told}")
