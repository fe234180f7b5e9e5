"""A divided plan and the plan of this device alone, side by side in the worker that has both: do
their answers agree, and which is faster?

A side is timed by a batch: `callers` threads ask one request after the other, and the time per
request is that between two answers, counted from the first `callers` of them on, when all stages
have something to do. Batches alternate in random order, each order followed by its reverse, and
the plan of this device alone is also timed against itself (see `profiling.ratio`).
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from edge_agent import clock
from edge_agent.errors import EdgeAgentError, StorageError
from edge_agent.planning.explain import interval_text
from edge_agent.plans import Epoch
from edge_agent.profiles import RatioInterval
from edge_agent.profiling.ratio import LEAST_PAIRS, interval_of, is_better
from edge_agent.profiling.tolerance import disagreement
from edge_agent.tensors import Arrays
from edge_agent.wire.hosting import Compare, Compared
from edge_agent.wire.messages import Message, error_text
from edge_agent.wire.packed import unpack_sample
from edge_agent.worker.divided import DividedRunner

log = logging.getLogger(__name__)

BATCH_S: Final = 0.25
"""A batch takes about so long, or one request for each caller and as many more."""
HALF_WIDTH: Final = 0.01
MOST_ROUNDS: Final = 100
MOST_IN_A_BATCH: Final = 512
_PLENTY: Final = 0.2
"""Of an effect, how wide the interval may be for it to be certain enough."""

Run = Callable[[Arrays], object]


@dataclass(slots=True)
class Batch:
    """What came of one."""

    per_request_s: float
    latency_s: float
    """Median of one request."""


def timed(run: Run, samples: Sequence[Arrays], callers: int, count: int) -> Batch:
    """Ask `count` requests, by `callers` threads at once.

    Raises: EdgeAgentError: a run failed.
    """
    left = itertools.count()
    ended: list[tuple[float, float]] = []
    failed: list[Exception] = []

    def call() -> None:
        while (number := next(left)) < count and not failed:
            begun_s = clock.precise_s()
            try:
                run(samples[number % len(samples)])
            except Exception as error:
                failed.append(error)
                return
            ended.append((begun_s, clock.precise_s()))

    begun_s = clock.precise_s()
    threads = [threading.Thread(target=call, name=f"compare-{i}") for i in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    ends = sorted(end for _, end in ended)
    # With one caller, each request begins when the one before ends.
    first = callers if callers > 1 else 0
    since_s = ends[first - 1] if first else begun_s
    return Batch(
        per_request_s=(ends[-1] - since_s) / (len(ends) - first),
        latency_s=median(end - begin for begin, end in ended),
    )


@dataclass(slots=True)
class _Side:
    run: Run
    callers: int
    count: int = 0
    """Requests of a batch; 0: it is not known yet how long one takes."""
    batches: list[Batch] = field(default_factory=list)

    def batch(self, samples: Sequence[Arrays]) -> Batch:
        """Time one."""
        if not self.count:
            probe = timed(self.run, samples, self.callers, 2 * self.callers)
            wanted = round(BATCH_S / max(probe.per_request_s, 1e-6))
            self.count = self.callers + min(max(wanted, self.callers), MOST_IN_A_BATCH)
        made = timed(self.run, samples, self.callers, self.count)
        self.batches.append(made)
        return made


class Comparing:
    """All rounds of one epoch; one request is dealt with at a time."""

    def __init__(self, epoch: Epoch, runner: DividedRunner) -> None:
        self._epoch = epoch
        self._runner = runner
        self._busy = threading.Lock()
        self._rng = random.Random(0)
        self._ratios: list[float] = []
        self._controls: list[float] = []
        self._divided: _Side | None = None
        self._alone: _Side | None = None
        self._wrong: str | None = None
        """None: the answers were not compared yet."""

    def begin(
        self,
        message: Compare,
        outputs: Sequence[str],
        has_pause: Callable[[], bool],
        send: Callable[[Message], None],
    ) -> None:
        """Do what is asked on another thread, which sends what came of it. `has_pause` blocks until
        nothing was asked for a while, or longer than it is worth."""

        def work() -> None:
            with self._busy:
                try:
                    samples = [_sample(path) for path in message.samples]
                    self._rounds(message, samples, outputs, has_pause)
                except EdgeAgentError as error:
                    self._wrong = f"a run failed: {error_text(error)}"
                except Exception as error:
                    log.exception("comparing failed")
                    self._wrong = f"comparing failed: {type(error).__name__}: {error_text(error)}"
                send(self._compared())

        threading.Thread(target=work, name="compare", daemon=True).start()

    def _rounds(
        self,
        message: Compare,
        samples: Sequence[Arrays],
        outputs: Sequence[str],
        has_pause: Callable[[], bool],
    ) -> None:
        until_s = clock.monotonic_s() + message.budget_s
        if self._divided is None or self._alone is None:
            self._divided = _Side(lambda feeds: self._runner.run(feeds, outputs), message.callers)
            alone = self._runner.run_alone
            self._alone = _Side(lambda feeds: alone(feeds, outputs), message.alone_callers)
            self._wrong = self._disagreement(message, samples, outputs)
        while not self._is_decided:
            has_pause()
            order = self._rng.sample(range(3), 3)
            for one in (order, order[::-1]):
                self._round(self._divided, self._alone, one, samples)
            if clock.monotonic_s() >= until_s:
                return

    def _round(
        self, divided: _Side, alone: _Side, order: Sequence[int], samples: Sequence[Arrays]
    ) -> None:
        sides = (divided, alone, alone)
        times = {index: sides[index].batch(samples).per_request_s for index in order}
        self._ratios.append(times[1] / times[0])
        self._controls.append(times[1] / times[2])

    def _disagreement(
        self, message: Compare, samples: Sequence[Arrays], outputs: Sequence[str]
    ) -> str:
        for feeds in samples:
            again = self._runner.run_again
            got = self._runner.run(feeds, outputs)
            if self._runner.run_again > again:
                return "a request was lost, or failed, on the way"
            want = self._runner.run_alone(feeds, outputs)
            wrong = disagreement(
                got, want, is_quantised=message.is_quantised, bound=message.float_bound
            )
            if wrong is not None:
                return wrong
        return ""

    @property
    def _is_decided(self) -> bool:
        if self._wrong or not self._runner.has_route or len(self._ratios) >= MOST_ROUNDS:
            return True
        if len(self._ratios) < LEAST_PAIRS:
            return False
        ratio, control = interval_of(self._ratios), interval_of(self._controls)
        wanted = max(HALF_WIDTH, _PLENTY * abs(ratio.median - 1.0))
        is_narrow = max(ratio.high - ratio.median, ratio.median - ratio.low) <= wanted
        return is_narrow and (is_better(ratio, control) or ratio.high < 1.0 or wanted <= HALF_WIDTH)

    @property
    def _is_faster(self) -> bool:
        if self._wrong != "" or not self._runner.has_route or not self._ratios:
            return False
        return is_better(interval_of(self._ratios), interval_of(self._controls))

    @property
    def _evidence(self) -> str:
        if not self._ratios:
            return "nothing was measured"
        ratio, control = map(interval_text, map(interval_of, (self._ratios, self._controls)))
        return f"this device alone over the divided plan {ratio}; alone over itself {control}"

    def _compared(self) -> Compared:
        divided, alone = self._divided, self._alone
        return Compared(
            epoch=self._epoch,
            alone_over_divided=_interval(self._ratios),
            control=_interval(self._controls),
            divided_s=_median(divided, lambda batch: batch.per_request_s),
            latency_s=_median(divided, lambda batch: batch.latency_s),
            alone_s=_median(alone, lambda batch: batch.per_request_s),
            wrong=self._wrong or "",
            is_faster=self._is_faster,
            evidence=self._evidence,
            is_decided=self._is_decided,
        )


def _sample(path: str) -> Arrays:
    try:
        return unpack_sample(Path(path).read_bytes())[1]
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error


def _interval(ratios: Sequence[float]) -> RatioInterval | None:
    return interval_of(ratios) if ratios else None


def _median(side: _Side | None, of: Callable[[Batch], float]) -> float | None:
    return None if side is None or not side.batches else median(map(of, side.batches))
