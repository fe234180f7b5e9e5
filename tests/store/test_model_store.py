import os
import signal
import subprocess
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path

import pytest

from edge_agent.errors import ModelRefused, StorageError
from edge_agent.store.models import ModelStore, Staged
from edge_agent.subgraphs import ModelId
from tests.store.swapping import outcomes_of

ENOUGH_BYTES = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "state")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model file."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"graph")
    return path


def admit(store: ModelStore, source: Path) -> tuple[ModelId, Path]:
    with store.stage(source, ENOUGH_BYTES) as staged:
        return staged.commit()


def staging(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state" / "staging").iterdir())


def test_a_model_is_copied_and_verifies(store: ModelStore, source: Path, tmp_path: Path) -> None:
    model, path = admit(store, source)
    source.write_bytes(b"changed later")
    assert path == store.path(model) == tmp_path / "state" / "models" / model / "model.onnx"
    assert path.read_bytes() == b"graph"
    store.verify(model)
    assert store.ids() == (model,)
    assert staging(tmp_path) == []


def test_the_id_is_the_hash_of_the_file(store: ModelStore, source: Path) -> None:
    model, _ = admit(store, source)
    assert model == sha256(b"graph").hexdigest()


def test_equal_files_give_one_stored_model(store: ModelStore, source: Path, tmp_path: Path) -> None:
    first = admit(store, source)
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(b"graph")
    assert admit(store, copy) == first
    assert staging(tmp_path) == []


def test_another_content_is_another_model(store: ModelStore, source: Path) -> None:
    first, _ = admit(store, source)
    source.write_bytes(b"changed")
    second, _ = admit(store, source)
    assert first != second
    assert store.ids() == tuple(sorted((first, second)))


def test_a_staged_model_can_be_read_before_it_is_committed(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    with store.stage(source, ENOUGH_BYTES) as staged:
        assert staged.path.read_bytes() == b"graph"
        assert staged.copied_bytes == len(b"graph")
    assert store.ids() == ()
    assert staging(tmp_path) == []


def test_a_staged_model_is_searched_before_it_is_hashed(store: ModelStore, source: Path) -> None:
    with store.stage(source, ENOUGH_BYTES) as staged:
        assert staged.contains(b"rap")
        assert not staged.contains(b"graphs")
        staged.seal()
        staged.seal()
        model, _ = staged.commit()
    store.verify(model)
    source.write_bytes(b"")
    with store.stage(source, ENOUGH_BYTES) as staged:
        assert not staged.contains(b"g")


def test_a_file_that_the_kernel_does_not_copy_is_copied_all_the_same(tmp_path: Path) -> None:
    staged = Staged(source=Path("m"), models=tmp_path, staging=tmp_path / "staging")
    with staged, subprocess.Popen(["echo", "four"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        staged.copy_model(child.stdout.fileno(), 5)
        assert staged.path.read_bytes() == b"four\n"
        assert staged.copied_bytes == 5


def test_a_link_that_the_user_names_is_followed(store: ModelStore, source: Path) -> None:
    link = source.with_name("link.onnx")
    link.symlink_to(source)
    _, path = admit(store, link)
    assert path.read_bytes() == b"graph"


def test_a_file_above_the_limit_is_refused_with_both_sizes(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelRefused, match=r"m\.onnx: got 5 bytes, want at most 4"):
        store.stage(source, 4)
    assert staging(tmp_path) == []


def test_a_file_that_grows_above_the_limit_during_the_copy_is_refused(tmp_path: Path) -> None:
    staged = Staged(source=Path("m"), models=tmp_path, staging=tmp_path / "staging")
    with staged, subprocess.Popen(["echo", "four"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        with pytest.raises(ModelRefused, match="m: got 5 bytes, want at most 4"):
            staged.copy_model(child.stdout.fileno(), 4)


@pytest.mark.parametrize("kind", ["a folder", "a FIFO", "a device", "nothing", "a loop"])
def test_what_is_no_regular_file_is_refused(store: ModelStore, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    match kind:
        case "a folder":
            path.mkdir()
        case "a FIFO":
            os.mkfifo(path)
        case "a device":
            path = Path("/dev/zero")
        case "a loop":
            path.symlink_to(path)
    with pytest.raises(ModelRefused, match=f"{path}: (is {kind}, want|cannot be read: )"):
        store.stage(path, ENOUGH_BYTES)
    assert staging(tmp_path) == []


@pytest.mark.parametrize("damage", ["flipped", "cut", "removed"])
def test_damage_to_a_stored_model_is_found_and_cured_by_loading_again(
    store: ModelStore, source: Path, damage: str
) -> None:
    model, victim = admit(store, source)
    content = victim.read_bytes()
    victim.unlink()
    if damage != "removed":
        victim.write_bytes(content[:-1] + (b"?" if damage == "flipped" else b""))
    reason = "is missing" if damage == "removed" else "SHA-256 differs"
    with pytest.raises(StorageError, match=rf"{victim}: .*{reason}.*; load the model again"):
        store.verify(model)
    assert admit(store, source) == (model, victim)
    store.verify(model)


def test_an_id_that_is_a_path_reaches_nothing(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    with pytest.raises(StorageError, match="want 64 hexadecimal digits"):
        store.remove(ModelId("../../precious"))
    assert (tmp_path / "precious").exists()


def test_a_removed_model_is_gone_and_collecting_keeps_the_others(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    first, path = admit(store, source)
    source.write_bytes(b"another")
    second, _ = admit(store, source)
    assert store.collect({second}) == (first,)
    assert store.ids() == (second,)
    with pytest.raises(StorageError, match=f"{path}: is missing; load the model again"):
        store.path(first)
    store.remove(second)
    store.remove(second)
    assert store.ids() == ()
    assert staging(tmp_path) == []


def test_a_file_that_becomes_a_fifo_between_look_and_use_is_copied_or_refused(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    def attempt() -> str:
        with store.stage(source, ENOUGH_BYTES) as staged:
            return staged.path.read_text()

    assert outcomes_of(attempt, source) == {"graph", "refused"}
    assert staging(tmp_path) == []


STAGER = """
import sys
from pathlib import Path
from edge_agent.store.models import ModelStore, Staged
staged = ModelStore(Path(sys.argv[1])).stage(Path(sys.argv[2]), 1 << 40)
print("staged", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_was_copying_is_swept_and_what_a_living_one_has_is_not(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    large = tmp_path / "large.onnx"
    with large.open("wb") as file:
        file.truncate(256 << 20)
    with subprocess.Popen(
        [sys.executable, "-c", STAGER, str(tmp_path / "state"), str(large)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        wait = threading.Event()
        deadline_s = time.monotonic() + 10
        while not list((tmp_path / "state" / "staging").glob("*/model.onnx")):
            assert time.monotonic() < deadline_s
            wait.wait(0.002)
        assert store.sweep() == ()
        child.send_signal(signal.SIGKILL)
    with store.stage(source, ENOUGH_BYTES) as living:
        (dead,) = store.sweep()
        assert not dead.exists()
        assert living.path.read_bytes() == b"graph"
        model, _ = living.commit()
    store.verify(model)
    assert staging(tmp_path) == []


def test_two_processes_that_commit_the_same_model_share_it(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    with (
        store.stage(source, ENOUGH_BYTES) as one,
        ModelStore(tmp_path / "state").stage(source, ENOUGH_BYTES) as other,
    ):
        assert one.commit() == other.commit()
    assert len(store.ids()) == 1
    assert staging(tmp_path) == []
