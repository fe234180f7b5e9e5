"""How a graph is optimised once and written so that later sessions map it and load at once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from edge_agent.engine.session import OptimisationLevel, open_on_cpu, session_options
from edge_agent.errors import ModelRefused, StorageError

GRAPH: Final = "graph.onnx"
WEIGHTS: Final = "weights.bin"
_SMALLEST_OUTSIDE_BYTES: Final = 4096


def compile_graph(
    source: Path, folder: Path, level: OptimisationLevel, disabled: Sequence[str] = ()
) -> Path:
    """Write `folder`/graph.onnx, optimised from `source` to `level`, and return its path.

    Constants of 4 KiB and more, with their prepacked forms, lie beside it in weights.bin (absent
    if there are none). Sessions open the graph with OptimisationLevel.NONE, and their outputs are
    bit-equal to those of `source` opened with `level`. The files are valid for this version of
    ONNX Runtime and this processor only. The folder appears whole or not at all, but is not
    forced to disk: the store does so with what it keeps. One that exists is left as it is.
    `disabled` names optimisers that are not applied.

    Raises: ModelRefused if ONNX Runtime refuses the graph, or if inputs of IR version 3 with a
        default lose it (initializers of equal value are merged into one); StorageError.
    """
    if (folder / GRAPH).exists():
        return folder / GRAPH
    with published(folder) as draft:
        _save(source, draft, level, disabled)
    return folder / GRAPH


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """A new folder for the files of a graph, which becomes `folder` if the block ends well.

    Raises: StorageError.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise StorageError(f"{folder.parent}: cannot be written: {error.strerror}") from error
    try:
        yield draft
        _publish(draft, folder)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _save(source: Path, draft: Path, level: OptimisationLevel, disabled: Sequence[str]) -> None:
    try:
        _save_and_reopen(source, draft, level, disabled, prepacked=True)
    except ModelRefused:
        # ONNX Runtime 1.32 ends the file too early where the weights of a grouped convolution in
        # int8 are prepacked. Without the prepacked forms, opening takes longer and no more.
        for path in draft.iterdir():
            path.unlink()
        _save_and_reopen(source, draft, level, disabled, prepacked=False)


def _save_and_reopen(
    source: Path, draft: Path, level: OptimisationLevel, disabled: Sequence[str], *, prepacked: bool
) -> None:
    options = _saving_options(draft / GRAPH, level, prepacked=prepacked)
    session = open_on_cpu(source, options, set(disabled) or None)
    if not (draft / GRAPH).exists():
        raise ModelRefused("ONNX Runtime wrote no optimised graph")
    wanted = interface_of(session)
    del session  # it holds all weights a second time, packed
    got = interface_of(
        open_on_cpu(draft / GRAPH, session_options(OptimisationLevel.NONE, threads=1))
    )
    if surplus := sorted(got - wanted):
        raise ModelRefused(
            f"cannot be compiled: once saved, {surplus[0]} has lost its default; "
            "make initializers that are inputs too constants first (or use IR version 4 or newer)"
        )
    if missing := sorted(wanted - got):
        raise ModelRefused(f"cannot be compiled: {missing[0]} is lost on saving")


def interface_of(session: Any) -> set[str]:
    """What a graph wants, may be given, and gives."""
    return {
        *(f'input "{d.name}"' for d in session.get_inputs()),
        *(f'initializer "{d.name}"' for d in session.get_overridable_initializers()),
        *(f'output "{d.name}"' for d in session.get_outputs()),
    }


def _saving_options(graph: Path, level: OptimisationLevel, *, prepacked: bool) -> Any:
    options = session_options(level, threads=1)
    save_to(graph, options)
    if prepacked:
        key = "session.save_external_prepacked_constant_initializers"
        options.add_session_config_entry(key, "1")
    return options


def save_to(graph: Path, options: Any) -> None:
    """Have a session with those options write its optimised graph, large constants beside it."""
    options.optimized_model_filepath = str(graph)
    prefix = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{prefix}_file_name", WEIGHTS)
    options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(_SMALLEST_OUTSIDE_BYTES))


def _publish(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError:
        # Another process compiled the same graph meanwhile; its files are as good.
        if not (folder / GRAPH).exists():
            raise
