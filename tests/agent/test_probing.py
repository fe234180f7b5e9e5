"""The device is found out about once, by whoever asks first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.agent import probing
from edge_agent.agent.probing import Prober
from edge_agent.config import Settings
from edge_agent.devices import Device
from edge_agent.errors import BuilderLost
from edge_agent.wire.messages import Probed
from tests.builder.made_units import OTHER, device

FOUND = device(OTHER)
WAIT_S = 10.0


class FakeBuilders:
    """Builders that find what the test says."""

    def __init__(self) -> None:
        self.then: Callable[[], Device] = lambda: FOUND
        self.background: list[bool] = []
        self.closed = 0

    def __call__(self, _settings: Settings, *, is_background: bool = False) -> FakeBuilders:
        self.background.append(is_background)
        return self

    def probe(self) -> Probed:
        return Probed(device=self.then())

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def builders(monkeypatch: pytest.MonkeyPatch) -> FakeBuilders:
    made = FakeBuilders()
    monkeypatch.setattr(probing, "Builder", made)
    return made


@pytest.fixture
def prober(tmp_path: Path) -> Prober:
    return Prober(Settings(socket=tmp_path / "s", state=tmp_path, cache=tmp_path))


def test_nobody_asked_and_nothing_is_known(prober: Prober, builders: FakeBuilders) -> None:
    assert prober.known is None
    assert builders.background == []


def test_the_device_is_probed_once_in_the_background(
    prober: Prober, builders: FakeBuilders
) -> None:
    assert prober.device() is FOUND
    assert prober.known is FOUND
    assert prober.device() is FOUND
    assert builders.background == [True]
    assert builders.closed == 1


def test_what_a_builder_found_out_is_not_found_out_again(
    prober: Prober, builders: FakeBuilders
) -> None:
    prober.learn(FOUND)
    assert prober.device() is FOUND
    assert builders.background == []


def test_what_was_found_last_is_known(prober: Prober, builders: FakeBuilders) -> None:
    prober.device()
    changed = replace(FOUND, units=())
    prober.learn(changed)
    assert prober.device() is changed
    assert len(builders.background) == 1


def test_a_probe_that_failed_is_tried_again_by_the_next_who_asks(
    prober: Prober, builders: FakeBuilders
) -> None:
    def fail() -> Device:
        raise BuilderLost("signal 11")

    builders.then = fail
    with pytest.raises(BuilderLost, match="signal 11"):
        prober.device()
    assert builders.closed == 1
    assert prober.known is None
    builders.then = lambda: FOUND
    assert prober.device() is FOUND
    assert builders.closed == 2


def test_who_asks_meanwhile_waits_for_the_same_probe(
    prober: Prober, builders: FakeBuilders
) -> None:
    is_probing, may_end = threading.Event(), threading.Event()

    def find() -> Device:
        is_probing.set()
        assert may_end.wait(WAIT_S)
        return FOUND

    builders.then = find
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(prober.device)
        assert is_probing.wait(WAIT_S)
        second = pool.submit(prober.device)
        may_end.set()
        assert first.result(WAIT_S) is second.result(WAIT_S) is FOUND
    assert len(builders.background) == 1
