"""How ONNX Runtime words its errors, and which of ours each becomes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.runtime import runtime_errors
from edge_agent.errors import (
    EdgeAgentError,
    ModelRefused,
    RunFailed,
    RuntimeUnavailable,
    StorageError,
)

_STATUS: Final = re.compile(r"^(?:Error in execution: )?(?:\[ONNXRuntimeError\] : \d+ : \w+ : )?")
_SOURCE_FILE: Final = re.compile(r"/\S*onnxruntime\S*/\S+\.(?:cc|h|cpp):\d+ ?")
_OTHER_SOURCE: Final = re.compile(r"(?:Exception from| at) src/\S+:\d+(?=:)")
_CONDITION: Final = re.compile(r"^.{1,300}? was false\. (?=\S)")
"""Of the source, before what it means."""
_LOADING_IT: Final = re.compile(r"^(?:Load model (?:from )?it failed[:.] ?)+")
_FULL_DISK: Final = ("No space left", "errno = 28", "Failed to write", "write failed")
_NOT_WHOLE: Final = "fallback to CPU EP has been explicitly disabled"
_THREADS: Final = ("affinit", "thread pool")


def reason_of(error: Exception, path: Path | None = None) -> str:
    """What ONNX Runtime complains of, on one line, without its prefixes, sources and folders; the
    file at `path` is "it", whatever it is called."""
    text = _STATUS.sub("", str(error).strip())
    text = _STATUS.sub("", _OTHER_SOURCE.sub("", _without_source(text)))
    if path is not None:
        text = _LOADING_IT.sub("", text.replace(str(path), "it")).replace(f"{path.parent}/", "")
    return "; ".join(line.strip() for line in text.splitlines() if line.strip(" :"))


def _without_source(text: str) -> str:
    """Cut `/src/file.cc:46 type name(arguments) const condition was false.` out of a message."""
    while found := _SOURCE_FILE.search(text):
        rest = _CONDITION.sub("", _after_signature(text[found.end() :]))
        text = text[: found.start()] + rest
    return text


def _after_signature(text: str) -> str:
    start = text.find("(")
    if start < 0:
        return text
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        rest = text[at + 1 :]
        # `operator()(int)` and `f(int)::<lambda(int)>` go on behind a closed parenthesis.
        if depth == 0 and text[at] == ")" and not rest.startswith(("(", "::")):
            rest = rest.removeprefix(">").removeprefix(" const").lstrip()
            return _after_template(rest) if rest.startswith("[with ") else rest
    return text


def _after_template(text: str) -> str:
    """Cut `[with T = float]` off the front of a message."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth == 0:
            return text[at + 1 :].lstrip()
    return text


def is_not_whole(reason: str) -> bool:
    """Whether ONNX Runtime refuses a model because a provider does not take all of it."""
    return _NOT_WHOLE in reason


@contextmanager
def about(what: str) -> Iterator[None]:
    """Have errors of ours begin with the name of a file that the user knows."""
    try:
        yield
    except EdgeAgentError as error:
        raise type(error)(f"{what}: {error}") from error


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """Turn what ONNX Runtime raises while it loads or saves a model into our errors. They do not
    name the file, which most often has a name that means nothing to a user: see `about`.

    Raises: ModelRefused for the file and its operators; RuntimeUnavailable for threads that the
        system does not give; StorageError for a full disk.
    """
    try:
        yield
    except MemoryError as error:
        raise RuntimeUnavailable(
            "memory ran out while loading; unload another model first"
        ) from error
    except runtime_errors() as error:
        reason = reason_of(error, path)
        if any(word in reason for word in _FULL_DISK):
            raise StorageError(f"cannot be saved: {reason}") from error
        if any(word in reason for word in _THREADS):
            raise RuntimeUnavailable(f"ONNX Runtime cannot start its threads: {reason}") from error
        if "bad_alloc" in reason or "Failed to allocate memory" in reason:
            raise RuntimeUnavailable(
                "memory ran out while loading; unload another model first"
            ) from error
        if is_not_whole(reason):
            raise ModelRefused("its provider does not take all nodes") from error
        raise ModelRefused(f"ONNX Runtime refuses it: {reason}") from error


@contextmanager
def running(path: Path, cancel: Cancellation | None) -> Iterator[None]:
    """Turn what ONNX Runtime raises while it runs a model into our errors.

    Raises: RunFailed; the reason of `cancel` if it was cancelled.
    """
    try:
        yield
    except MemoryError as error:
        raise RunFailed("memory ran out; send a smaller input") from error
    except runtime_errors() as error:
        if cancel is not None:
            cancel.check()
        raise RunFailed(reason_of(error, path)) from error
