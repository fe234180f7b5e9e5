"""Packages as pip would install them, in a folder that goes on PYTHONPATH."""

from __future__ import annotations

from pathlib import Path


def make_package(folder: Path, name: str, version: str, source: str | None = None) -> None:
    """Write the metadata of a distribution into `folder` and, if `source` is given, its module."""
    module = name.replace("-", "_")
    metadata = folder / f"{module}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if source is not None:
        (folder / module).mkdir()
        (folder / module / "__init__.py").write_text(source)


def plugin_source(library: Path, *providers: str) -> str:
    """The module of a plugin package, by ONNX Runtime's convention."""
    return (
        f"def get_library_path():\n    return {str(library)!r}\n"
        f"def get_ep_names():\n    return {list(providers)!r}\n"
    )
