import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.errors import UsageError
from edge_agent.plans import AllowedWire, Target
from edge_agent.store.registry import LoadedModel, Registry, check_name
from edge_agent.store.sealed import write_sealed
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import TensorName, WireType

MODEL = ModelId("a" * 64)
OTHER = ModelId("b" * 64)
LOADED = LoadedModel(
    name="resnet-50.v1",
    model=MODEL,
    target=Target.THROUGHPUT,
    threads=2,
    shapes=((TensorName("x"), (1, 3, 224, 224)),),
    loaded_at_s=1.5e9,
    source="/models/resnet.onnx",
    over=("pi", "box"),
    wire=AllowedWire(type=WireType.FP16, bound=0.01),
    quarantined="killed its worker 3 times",
)
PLAIN = replace(LOADED, name="b", threads=None, shapes=(), quarantined=None)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


def test_what_was_saved_is_loaded_by_another_process_start(
    registry: Registry, tmp_path: Path
) -> None:
    registry.save(LOADED)
    registry.save(PLAIN)
    assert Registry(tmp_path).load() == ((PLAIN, LOADED), ())


def test_saving_again_replaces_and_removing_forgets(registry: Registry) -> None:
    registry.save(LOADED)
    registry.save(replace(LOADED, model=OTHER))
    assert registry.load() == ((replace(LOADED, model=OTHER),), ())
    registry.remove(LOADED.name)
    registry.remove(LOADED.name)
    assert registry.load() == ((), ())


@pytest.mark.parametrize("name", ["a", "9", "A.b_c-d", "x" * 64, "a.json.damaged-1", "a.json"])
def test_ordinary_names_are_allowed(registry: Registry, name: str) -> None:
    registry.save(replace(PLAIN, name=name))
    assert registry.load() == ((replace(PLAIN, name=name),), ())


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "-a", "a/b", "../a", "a\n", "ä", "x" * 65])
def test_names_that_could_be_paths_or_options_are_refused(registry: Registry, name: str) -> None:
    with pytest.raises(UsageError, match="model name: got "):
        check_name(name)
    with pytest.raises(UsageError):
        registry.save(replace(PLAIN, name=name))


def test_a_damaged_file_is_told_and_set_aside_and_the_others_are_kept(
    registry: Registry, tmp_path: Path
) -> None:
    registry.save(LOADED)
    registry.save(PLAIN)
    path = tmp_path / "registry" / "b.json"
    path.write_bytes(path.read_bytes()[:-1])
    models, (damage,) = registry.load()
    assert models == (LOADED,)
    assert str(damage).startswith(f"{path}: is damaged: got ")
    assert str(damage).endswith("; kept as b.json.damaged-1; load the model again")
    assert (tmp_path / "registry" / "b.json.damaged-1").exists()
    assert registry.load() == ((LOADED,), ())


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"name":"b"}', b"\xff", b'{"name":1}'])
def test_a_sealed_file_with_other_content_is_damaged(
    registry: Registry, tmp_path: Path, content: bytes
) -> None:
    write_sealed(tmp_path / "registry" / "b.json", content)
    models, (damage,) = registry.load()
    assert models == ()
    assert "b.json: is damaged" in str(damage)


def test_a_file_under_another_name_is_damaged(registry: Registry, tmp_path: Path) -> None:
    registry.save(PLAIN)
    (tmp_path / "registry" / "b.json").rename(tmp_path / "registry" / "c.json")
    models, (damage,) = registry.load()
    assert models == ()
    assert 'c.json: is the file of another name: "b"' in str(damage)


def test_incarnations_count_up_over_restarts(tmp_path: Path) -> None:
    assert [Registry(tmp_path).next_incarnation() for _ in range(3)] == [1, 2, 3]


def test_epochs_count_for_each_model_and_start_again_with_the_incarnation(
    registry: Registry, tmp_path: Path
) -> None:
    registry.next_incarnation()
    assert [registry.next_epoch(m) for m in (MODEL, MODEL, OTHER)] == [1, 2, 1]
    assert Registry(tmp_path).next_epoch(MODEL) == 3
    assert registry.next_incarnation() == 2
    assert registry.next_epoch(MODEL) == 1


@pytest.mark.parametrize("sealed", [True, False])
def test_no_number_comes_twice_after_the_counters_were_damaged(
    registry: Registry, tmp_path: Path, sealed: bool
) -> None:
    for _ in range(5):
        registry.next_incarnation()
    registry.next_epoch(MODEL)
    counters = tmp_path / "counters.json"
    if sealed:
        write_sealed(counters, b"{}")
    else:
        counters.write_bytes(b"damaged")
    first, second, other = (registry.next_epoch(m) for m in (MODEL, MODEL, OTHER))
    assert first > 1_700_000_000
    assert (second, other) == (first + 1, first)
    assert registry.next_incarnation() > 1_700_000_000
    assert registry.next_epoch(MODEL) == 1
    assert (tmp_path / "counters.json.damaged-1").exists()


def test_processes_that_count_at_once_get_different_numbers(tmp_path: Path) -> None:
    count = """
import sys
from pathlib import Path
from edge_agent.store.registry import Registry
registry = Registry(Path(sys.argv[1]))
print(*(registry.next_incarnation() for _ in range(20)))
"""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", count, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    numbers = [int(n) for child in children for n in child.communicate()[0].split()]
    assert sorted(numbers) == list(range(1, 41))


def test_a_sweep_removes_half_written_files(registry: Registry, tmp_path: Path) -> None:
    registry.save(PLAIN)
    for folder in (tmp_path, tmp_path / "registry"):
        (folder / ".new-abc").write_bytes(b"half")
    assert len(registry.sweep()) == 2
    assert registry.load() == ((PLAIN,), ())
