"""What peers measured of stages is kept by name, model and device, the newest of each run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edge_agent.devices import DeviceId
from edge_agent.errors import UsageError
from edge_agent.profiles import StageTimes
from edge_agent.store.peer_times import MOST_OF_A_DEVICE, PeerTimesStore
from edge_agent.store.sealed import read_sealed, write_sealed
from edge_agent.subgraphs import ModelId, SegmentRange
from tests.planning.made_models import configuration, times

MODEL, OTHER = ModelId("3f" * 32), ModelId("ff" * 32)
PI, BOX = DeviceId("pi2abc"), DeviceId("box3def")


def stage(start: int, stop: int, took_s: float = 1e-3) -> StageTimes:
    measured = times(configuration(), [took_s] * (stop - start), refused=(0,))
    return StageTimes(
        segments=SegmentRange(start=start, stop=stop),
        times=(measured,),
        device_key="key",
        division="division",
    )


def files_of(root: Path) -> list[Path]:
    return sorted(root.glob("peer_times/*/*/*"))


def test_it_comes_back_as_it_was_the_newest_last(tmp_path: Path) -> None:
    store = PeerTimesStore(tmp_path)
    assert store.load("m", MODEL, PI) == ()
    store.add("m", MODEL, PI, stage(4, 6))
    store.add("m", MODEL, PI, stage(0, 4))
    store.add("m", MODEL, BOX, stage(0, 6))
    store.add("m", OTHER, PI, stage(0, 1))
    store.add("n", MODEL, PI, stage(1, 2))
    again = PeerTimesStore(tmp_path)
    assert again.load("m", MODEL, PI) == (stage(4, 6), stage(0, 4))
    assert again.load("m", MODEL, BOX) == (stage(0, 6),)
    assert again.sweep() == ()


def test_what_was_measured_again_takes_its_place(tmp_path: Path) -> None:
    store = PeerTimesStore(tmp_path)
    for made in (stage(0, 2), stage(2, 4), stage(0, 2, 7.0)):
        store.add("m", MODEL, PI, made)
    assert store.load("m", MODEL, PI) == (stage(2, 4), stage(0, 2, 7.0))


def test_of_a_device_only_so_many_are_kept(tmp_path: Path) -> None:
    store = PeerTimesStore(tmp_path)
    made = [stage(at, at + 1) for at in range(MOST_OF_A_DEVICE + 3)]
    for one in made:
        store.add("m", MODEL, PI, one)
    assert store.load("m", MODEL, PI) == tuple(made[3:])
    assert len(files_of(tmp_path)) == MOST_OF_A_DEVICE


def test_what_belongs_to_no_loaded_model_is_removed(tmp_path: Path) -> None:
    store = PeerTimesStore(tmp_path)
    for name, model in (("m", MODEL), ("m", OTHER), ("n.o", MODEL)):
        store.add(name, model, PI, stage(0, 1))
    store.collect({("m", MODEL)})
    assert store.load("m", MODEL, PI) == (stage(0, 1),)
    assert store.load("m", OTHER, PI) == store.load("n.o", MODEL, PI) == ()
    assert len(files_of(tmp_path)) == 1
    store.collect(())
    assert files_of(tmp_path) == []


def test_what_is_damaged_or_of_another_version_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = PeerTimesStore(tmp_path)
    for at in range(4):
        store.add("m", MODEL, PI, stage(at, at + 1))
    cut, newer, strange, _ = files_of(tmp_path)
    cut.write_bytes(cut.read_bytes()[:-1])
    content = read_sealed(newer) or b""
    write_sealed(newer, content.replace(b'"v":1', b'"v":2'))
    write_sealed(strange, b'{"v":1,"stage":{}}')
    with caplog.at_level(logging.WARNING):
        assert store.load("m", MODEL, PI) == (stage(3, 4),)
    assert "measures it again" in caplog.text
    assert "is not used" in caplog.text
    store.add("m", MODEL, PI, stage(0, 1))
    assert store.load("m", MODEL, PI) == (stage(3, 4), stage(0, 1))


@pytest.mark.parametrize(
    ("name", "model", "device"), [("../m", MODEL, PI), ("m", "../x", PI), ("m", MODEL, "a/b")]
)
def test_names_that_are_paths_are_refused(
    tmp_path: Path, name: str, model: str, device: str
) -> None:
    store = PeerTimesStore(tmp_path)
    with pytest.raises(UsageError):
        store.add(name, ModelId(model), DeviceId(device), stage(0, 1))
    with pytest.raises(UsageError):
        store.load(name, ModelId(model), DeviceId(device))
