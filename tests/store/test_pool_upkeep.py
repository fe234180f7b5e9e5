"""Budget, order of eviction, leases, and what becomes of the space."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.store.blobs import PAGE_BYTES
from edge_agent.store.manifests import EntryKind
from edge_agent.store.pool import Pool
from edge_agent.subgraphs import ModelId
from tests.store.pool_entries import add, blob_path, intact, open_pool, stored, taken

HOLD = """
import sys
from pathlib import Path
from tests.store.pool_entries import open_pool, taken
entry = taken(open_pool(Path(sys.argv[1])), sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""
M = ModelId("m")
ENTRY_BYTES = 10 * PAGE_BYTES


def content(number: int) -> bytes:
    """One page less than an entry may take: its graph takes the other."""
    return bytes([number]) * (ENTRY_BYTES - PAGE_BYTES)


def use(pool: Pool, key: str, at_s: int) -> None:
    os.utime(pool.folder / f"{key}.json", (at_s, at_s))


def keys(pool: Pool) -> str:
    return "".join(sorted(p.stem for p in pool.folder.glob("*.json")))


def filled(folder: Path, budget_bytes: int) -> Pool:
    pool = open_pool(folder, budget_bytes)
    for number, key in enumerate("abcd"):
        add(pool, key, {content(number): []})
        use(pool, key, 1000 + number)
    return pool


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    pool = filled(tmp_path, 2 * ENTRY_BYTES)
    use(pool, "a", 5000)
    pool.collect({M})
    assert keys(pool) == "ad"
    assert not blob_path(pool, content(1)).exists()
    assert blob_path(pool, content(0)).exists()


def test_being_handed_out_counts_as_use(tmp_path: Path) -> None:
    pool = filled(tmp_path, ENTRY_BYTES)
    assert intact(pool, "b")
    pool.evict()
    assert keys(pool) == "b"


def test_what_fits_into_the_budget_stays(tmp_path: Path) -> None:
    pool = filled(tmp_path, 4 * ENTRY_BYTES)
    pool.collect({M})
    assert keys(pool) == "abcd"
    sizes = pool.sizes()
    assert (sizes.compiled_bytes, sizes.budget_bytes) == (4 * ENTRY_BYTES, 4 * ENTRY_BYTES)
    assert sizes.model_bytes == 0


def test_what_another_process_uses_is_not_evicted(tmp_path: Path) -> None:
    pool = filled(tmp_path, 0)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), "a"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        pool.evict()
        assert keys(pool) == "a"
        pool.collect(set())
        assert keys(pool) == "a"
        holder.kill()
    pool.collect(set())
    assert stored(pool) == []


def test_models_do_not_count_and_are_not_evicted(tmp_path: Path) -> None:
    pool = open_pool(tmp_path, 0)
    add(pool, "m", {content(1): []}, kind=EntryKind.MODEL)
    add(pool, "c", {content(1): [b"form" * PAGE_BYTES]})
    assert pool.sizes().model_bytes == ENTRY_BYTES
    assert pool.sizes().compiled_bytes == 5 * PAGE_BYTES
    pool.collect({M})
    assert keys(pool) == "m"
    assert blob_path(pool, content(1)).stat().st_size == len(content(1))
    assert intact(pool, "m", thorough=False)


def test_compiled_entries_take_no_more_than_half_of_what_the_disk_would_have_free(
    small_disk: Path,
) -> None:
    pool = open_pool(small_disk)
    before = os.statvfs(small_disk)
    add(pool, "k", {content(1): []})
    half = before.f_bavail * before.f_frsize // 2
    assert half - 8 * PAGE_BYTES < pool.sizes().budget_bytes <= half


def test_a_compiled_entry_stays_as_long_as_one_of_its_models(tmp_path: Path) -> None:
    pool = open_pool(tmp_path)
    for model in "mn":
        add(pool, model, {content(1): []}, kind=EntryKind.MODEL)
    add(pool, "k", {content(1): [b"form" * 2000]}, model="m")
    pool.note(ModelId("n"), "k")
    pool.collect({ModelId("n")})
    assert keys(pool) == "kn"
    assert pool.models() == ("n",)
    pool.collect(set())
    assert stored(pool) == []


def test_forms_that_nothing_uses_give_their_space_back_where_they_are(tmp_path: Path) -> None:
    pool = open_pool(tmp_path)
    big = b"f" * 100 * PAGE_BYTES
    add(pool, "k", {content(1): [big]}, model="k")
    (offset,) = add(pool, "l", {content(1): [b"last" * PAGE_BYTES]}, model="l")
    assert offset > len(big)
    before = blob_path(pool, content(1)).stat()
    pool.collect({ModelId("l")})
    after = blob_path(pool, content(1)).stat()
    assert after.st_size == before.st_size
    assert (before.st_blocks - after.st_blocks) * 512 >= len(big)
    assert intact(pool, "l", thorough=False)
    assert intact(pool, "l")
    pool.collect({ModelId("l")})  # holes are not punched again
    assert blob_path(pool, content(1)).stat().st_mtime_ns == after.st_mtime_ns


def test_nothing_is_tidied_while_an_entry_in_use_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = open_pool(tmp_path)
    add(pool, "k", {content(1): [b"form" * 2000]})
    with taken(pool, "k"):
        size = blob_path(pool, content(1)).stat().st_size
        (pool.folder / "k.json").write_bytes(b"?" * 300)
        pool.collect({M})
        assert blob_path(pool, content(1)).stat().st_size == size
        assert "the pool is not tidied" in caplog.text
    pool.collect({M})
    assert "blobs" not in "".join(stored(pool))
