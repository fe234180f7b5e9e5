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

ENOUGH_BYTES = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "state")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model file with external data in the same folder and below it."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "m.onnx").write_bytes(b"graph")
    (folder / "w.bin").write_bytes(b"weights")
    (folder / "sub" / "w.bin").write_bytes(b"other weights")
    return folder / "m.onnx"


def admit(store: ModelStore, source: Path, *locations: str) -> tuple[ModelId, Path]:
    with store.stage(source, ENOUGH_BYTES) as staged:
        for location in locations:
            staged.add_external(location, source.parent, ENOUGH_BYTES)
        return staged.commit()


def staging(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state" / "staging").iterdir())


def refusal(store: ModelStore, source: Path, location: str) -> str:
    with (
        pytest.raises(ModelRefused) as told,
        store.stage(source, ENOUGH_BYTES) as staged,
    ):
        staged.add_external(location, source.parent, ENOUGH_BYTES)
    message = str(told.value)
    prefix = f'{source}: external data "{location}": '
    assert message.startswith(prefix)
    return message.removeprefix(prefix)


def test_a_model_is_copied_with_its_external_data_and_verifies(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    model, path = admit(store, source, "w.bin", "sub/w.bin")
    source.write_bytes(b"changed later")
    assert path == store.path(model) == tmp_path / "state" / "models" / model / "model.onnx"
    assert path.read_bytes() == b"graph"
    assert (path.parent / "w.bin").read_bytes() == b"weights"
    assert (path.parent / "sub" / "w.bin").read_bytes() == b"other weights"
    store.verify(model)
    assert store.ids() == (model,)
    assert staging(tmp_path) == []


def test_the_id_is_the_hash_of_the_hashes(store: ModelStore, source: Path) -> None:
    graph, other, weights = (
        sha256(content).hexdigest() for content in (b"graph", b"other weights", b"weights")
    )
    described = f'["{graph}",[["sub/w.bin","{other}"],["w.bin","{weights}"]]]'
    model, _ = admit(store, source, "w.bin", "sub/w.bin")
    assert model == sha256(described.encode()).hexdigest()


def test_equal_files_give_one_stored_model(store: ModelStore, source: Path, tmp_path: Path) -> None:
    first = admit(store, source, "w.bin", "sub/w.bin")
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(b"graph")
    (tmp_path / "w.bin").write_bytes(b"weights")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"other weights")
    assert admit(store, copy, "./sub//w.bin", "w.bin", "./w.bin") == first
    assert staging(tmp_path) == []


@pytest.mark.parametrize("changed", ["m.onnx", "w.bin"])
def test_another_content_is_another_model(store: ModelStore, source: Path, changed: str) -> None:
    first, _ = admit(store, source, "w.bin")
    (source.parent / changed).write_bytes(b"changed")
    second, _ = admit(store, source, "w.bin")
    assert first != second
    assert store.ids() == tuple(sorted((first, second)))


def test_a_staged_model_can_be_read_before_it_is_committed(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    with store.stage(source, ENOUGH_BYTES) as staged:
        assert staged.path.read_bytes() == b"graph"
        staged.add_external("w.bin", source.parent, ENOUGH_BYTES)
        assert staged.copied_bytes == len(b"graph") + len(b"weights")
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
    with (
        pytest.raises(ModelRefused, match=r'external data "w\.bin": got 7 bytes, want at most 6'),
        store.stage(source, 5) as staged,
    ):
        staged.add_external("w.bin", source.parent, 6)
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


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("/etc/passwd", "is an absolute path, want a path inside the model's folder"),
        ("../w.bin", 'contains "..", want a path inside the model\'s folder'),
        ("sub/../w.bin", 'contains "..", want a path inside the model\'s folder'),
        ("", "names no file, want a path inside the model's folder"),
        ("./.", "names no file, want a path inside the model's folder"),
        ("gone.bin", "cannot be read: No such file or directory"),
        ("a\0b", "cannot be read: embedded null byte"),
        ("x" * 300, "cannot be read: File name too long"),
        ("sub", '"sub" is a folder, want a regular file'),
        ("w.bin/x", '"w.bin" is a regular file, want a folder'),
        ("fifo", '"fifo" is a FIFO, want a regular file'),
        ("manifest.json", "that name is taken by the store; rename the file"),
        ("model.onnx", "that name is taken by the store; rename the file"),
    ],
)
def test_external_data_that_is_not_a_file_inside_is_refused(
    store: ModelStore, source: Path, tmp_path: Path, location: str, reason: str
) -> None:
    os.mkfifo(source.parent / "fifo")
    assert refusal(store, source, location) == reason
    assert staging(tmp_path) == []


def test_external_data_behind_links_of_any_kind_is_refused(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    folder = source.parent
    (folder / "link.bin").symlink_to("w.bin")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "linked").symlink_to("sub")
    os.link(folder / "w.bin", folder / "hard.bin")
    copy = "replace it by a copy of what it points to"
    link = "is a symbolic link, want a regular file"
    assert refusal(store, source, "link.bin") == f'"link.bin" {link}; {copy}'
    assert refusal(store, source, "dangling") == f'"dangling" {link}; {copy}'
    assert refusal(store, source, "linked/w.bin") == (
        f'"linked" is a symbolic link, want a folder; {copy}'
    )
    assert refusal(store, source, "hard.bin") == (
        "has 2 names (hard links), want a regular file with one; replace it by a copy"
    )
    assert staging(tmp_path) == []


@pytest.mark.parametrize("damaged", ["model.onnx", "sub/w.bin"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "removed"])
def test_damage_to_a_stored_model_is_found_and_cured_by_loading_again(
    store: ModelStore, source: Path, damaged: str, damage: str
) -> None:
    model, path = admit(store, source, "sub/w.bin")
    victim = path.parent / damaged
    content = victim.read_bytes()
    victim.unlink()
    if damage != "removed":
        victim.write_bytes(content[:-1] + (b"?" if damage == "flipped" else b""))
    reason = {"flipped": "SHA-256", "cut": "bytes, want", "removed": "is missing"}[damage]
    with pytest.raises(StorageError, match=rf"{victim}: .*{reason}.*; load the model again"):
        store.verify(model)
    assert admit(store, source, "sub/w.bin") == (model, path)
    store.verify(model)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", None])
def test_a_damaged_manifest_is_found(
    store: ModelStore, source: Path, content: bytes | None
) -> None:
    model, path = admit(store, source)
    manifest = path.parent / "manifest.json"
    if content is None:
        manifest.unlink()
    else:
        manifest.write_bytes(content)
    with pytest.raises(StorageError, match=r"is damaged|no model is stored there"):
        store.verify(model)


def test_the_manifest_of_another_model_is_found(store: ModelStore, source: Path) -> None:
    model, path = admit(store, source)
    other, other_path = admit(store, source, "w.bin")
    os.replace(other_path.parent / "manifest.json", path.parent / "manifest.json")
    with pytest.raises(StorageError, match=f"is that of another model: {other}"):
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
    second, _ = admit(store, source, "w.bin")
    assert store.collect({second}) == (first,)
    assert store.ids() == (second,)
    with pytest.raises(StorageError, match=f"{path}: is missing; load the model again"):
        store.path(first)
    store.remove(second)
    store.remove(second)
    assert store.ids() == ()
    assert staging(tmp_path) == []


def test_a_file_without_content_of_a_terabyte_is_refused_before_it_is_copied(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    hole_bytes = 1 << 42
    with (source.parent / "hole.bin").open("wb") as file:
        file.truncate(hole_bytes)
    assert refusal(store, source, "hole.bin") == f"got {hole_bytes} bytes, want at most 1048576"
    with (
        store.stage(source, ENOUGH_BYTES) as staged,
        pytest.raises(StorageError, match=rf"got \d+ bytes free, want {hole_bytes}; free some"),
    ):
        staged.add_external("hole.bin", source.parent, hole_bytes)
    assert staging(tmp_path) == []


def test_a_model_file_that_is_its_own_external_data_is_copied_twice(
    store: ModelStore, source: Path
) -> None:
    model, path = admit(store, source, "m.onnx")
    assert (path.parent / "m.onnx").read_bytes() == path.read_bytes() == b"graph"
    store.verify(model)


def test_a_file_that_becomes_a_fifo_between_look_and_use_is_copied_or_refused(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    contents = {path: path.read_bytes() for path in (source, source.parent / "w.bin")}
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            for path, content in contents.items():
                new = path.with_suffix(".new")
                os.mkfifo(new)
                new.replace(path)
                new.write_bytes(content)
                new.replace(path)

    def attempt() -> str:
        try:
            with store.stage(source, ENOUGH_BYTES) as staged:
                staged.add_external("w.bin", source.parent, ENOUGH_BYTES)
                copies = (staged.path, staged.path.parent / "w.bin")
                return "".join(copy.read_text() for copy in copies)
        except ModelRefused as refusal:
            return "refused" if "is a FIFO, want a regular file" in str(refusal) else str(refusal)

    swapping = threading.Thread(target=swap)
    swapping.start()
    outcomes: set[str] = set()
    until_s = time.monotonic() + 10.0
    try:
        while len(outcomes) < 2 and time.monotonic() < until_s:
            outcomes |= {attempt() for _ in range(100)}
    finally:
        is_over.set()
        swapping.join()
    assert outcomes == {"graphweights", "refused"}
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
