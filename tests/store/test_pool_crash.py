"""Processes that die while they add, or add the same at once: what is published is whole."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.errors import StorageError
from edge_agent.store.folder import free_bytes
from edge_agent.store.manifests import EntryKind
from edge_agent.store.pool import Pool
from edge_agent.subgraphs import ModelId
from tests.store.pool_entries import add, digest, intact, open_pool, stored, taken

ADD_AND_REMOVE = """
import random, sys
from pathlib import Path
from edge_agent.subgraphs import ModelId
from tests.store.pool_entries import add, open_pool
seed = int(sys.argv[2])
pool, chance = open_pool(Path(sys.argv[1])), random.Random(seed)
print("ready", flush=True)
for number in range(10_000):
    model = f"m{chance.randrange(4)}"
    tensors = {
        bytes([chance.randrange(6)]) * 20_000: [bytes([chance.randrange(256)]) * 9_000]
        for _ in range(3)
    }
    add(pool, f"k{chance.randrange(12)}", tensors, model=model)
    if number % 7 == 6:
        pool.collect({ModelId(f"m{chance.randrange(4)}"), ModelId("m0")})
"""
ADD_THE_SAME = """
import sys
from pathlib import Path
from tests.store.pool_entries import add, open_pool
pool = open_pool(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
for _ in range(10):
    for key in "abc":
        add(pool, key, {b"raw" * 9_000: [key.encode() * 8_000, b"shared" * 900]})
"""


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def check_all(folder: Path) -> int:
    """Every entry is whole, after as before tidying; how many there are."""
    pool = open_pool(folder)
    keys = [p.stem for p in pool.folder.glob("*.json")]
    assert all(intact(pool, key) for key in keys)
    pool.sweep()
    pool.collect({ModelId(f"m{i}") for i in range(4)})
    keys = [p.stem for p in pool.folder.glob("*.json")]
    assert all(intact(pool, key) for key in keys)
    graphs = [p.stem for p in pool.folder.glob("*.onnx")]
    assert sorted(graphs) == sorted(keys)
    assert not list(pool.folder.glob(".*"))
    assert not list(pool.folder.glob("*.disowned"))
    return len(keys)


def kill_at_some_moment(folder: Path, seed: int) -> None:
    with child(ADD_AND_REMOVE, str(folder), str(seed)) as started:
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(random.Random(seed).uniform(0.0, 0.15))
        started.kill()


@pytest.mark.long
def test_what_a_killed_process_published_is_whole_and_others_go_on(tmp_path: Path) -> None:
    seen = 0
    for seed in range(12):
        kill_at_some_moment(tmp_path, seed)
        seen += check_all(tmp_path)
    assert seen > 12
    pool = open_pool(tmp_path)
    add(pool, "new", {b"x" * 9_000: [b"y" * 9_000]})
    assert intact(pool, "new")
    pool.collect(set())
    assert stored(pool) == []


@pytest.mark.many
def test_what_a_killed_process_published_is_whole_however_often_it_is_killed(
    tmp_path: Path,
) -> None:
    for seed in range(100, 300):
        kill_at_some_moment(tmp_path, seed)
        check_all(tmp_path)


def test_processes_that_add_the_same_at_once_store_it_once(tmp_path: Path) -> None:
    children = [child(ADD_THE_SAME, str(tmp_path)) for _ in range(2)]
    for started in children:
        assert started.stdin is not None
        started.stdin.close()
    for started in children:
        with started:
            assert started.wait(60) == 0
    pool = open_pool(tmp_path)
    pool.collect({ModelId("m")})
    assert all(intact(pool, key) for key in "abc")
    blob = digest(b"raw" * 9_000)
    assert stored(pool) == sorted(
        [f"{key}{end}" for key in "abc" for end in (".json", ".onnx")]
        + [f"made/m/{key}" for key in "abc"]
        + [f"blobs/{blob}"]
    )
    size = (pool.folder / "blobs" / blob).stat().st_size
    assert size < 27_000 + 4 * 12_288


def refusal_of_adding(pool: Pool, tensors: dict[bytes, list[bytes]]) -> str | None:
    try:
        add(pool, "l", tensors, model="l")
    except StorageError as error:
        return str(error)
    return None


def test_a_full_disk_leaves_what_was_there_and_nothing_else(small_disk: Path) -> None:
    pool = open_pool(small_disk)
    add(pool, "k", {b"raw" * 5_000: [b"form" * 2_000]})
    add(pool, "model", {b"raw" * 5_000: []}, kind=EntryKind.MODEL)
    before, room_bytes = stored(pool), free_bytes(small_disk)
    refusals = []
    with taken(pool, "k"):  # else it is evicted to make room
        for size in range(4096, room_bytes + 16_384, 8192):
            content = os.urandom(size)
            tensors = {content: [], b"raw" * 5_000: [content[:9_000]]}
            refusals.append(refusal_of_adding(pool, tensors))
            pool.collect({ModelId("m"), ModelId("model")})
            assert stored(pool) == before
            assert intact(pool, "k")
            assert intact(pool, "model")
    assert refusals[0] is None
    assert "No space left on device; free some space there" in (refusals[-1] or "")
    assert free_bytes(small_disk) == room_bytes
