"""Plugin providers: libraries that ONNX Runtime loads on request, from packages or named ones.

A package of a plugin provider has a module `onnxruntime_NAME` with `get_library_path()` and
`get_ep_names()` (the convention of ONNX Runtime's own plugins). Loading a library runs its code, so
only what is installed in this environment is loaded, or what the administrator names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any, Final

from edge_agent.engine.runtime import BUILDS, load_runtime

_PREFIX: Final = "onnxruntime_"
_registered: dict[str, str] = {}
"""Library by provider, in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A provider that a library brings."""

    provider: str
    """The name of the package, where it does not tell."""
    library: str
    """Absolute path."""
    package: str
    version: str
    fault: str = ""
    """Why it cannot be used."""


def installed_plugins(
    skip: Collection[str] = (), on_asking: Callable[[str], None] = lambda _package: None
) -> tuple[Plugin, ...]:
    """The plugin providers of the packages in this environment, by name.

    Imports the packages but those in `skip`, which may do anything: `on_asking` is told before
    each. Loads no library.
    """
    found: list[Plugin] = []
    for name, version in _distributions():
        if name not in skip:
            on_asking(name)
            found += _plugins(name, version)
    return tuple(sorted(found, key=lambda plugin: plugin.provider))


def _plugins(package: str, version: str) -> list[Plugin]:
    try:
        module = plugin_module(package)
        if module is None:
            return []
        library, providers = str(module.get_library_path()), list(module.get_ep_names())
    # Foreign code, which may raise anything: it is one more provider that does not work.
    except Exception as error:
        fault = f"{package} {version} cannot be asked what it brings: {error}"
        return [Plugin(provider=package, library="", package=package, version=version, fault=fault)]
    return [
        Plugin(provider=provider, library=library, package=package, version=version)
        for provider in providers
    ]


def plugin_module(package: str) -> ModuleType | None:
    """The module of the package of a plugin provider, imported, if that is installed."""
    name = package.replace("-", "_")
    assert name.startswith(_PREFIX)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return None
        raise
    is_plugin = all(hasattr(module, what) for what in ("get_library_path", "get_ep_names"))
    return module if is_plugin else None


def register(provider: str, library: str) -> None:
    """Have ONNX Runtime load the library of a plugin provider, once in this process.

    Raises: what ONNX Runtime raises where that cannot be done.
    """
    if _registered.get(provider) == library:
        return
    # The name becomes that of the provider.
    load_runtime().register_execution_provider_library(provider, library)
    _registered[provider] = library


def is_registered(provider: str) -> bool:
    """Whether this process had the library of that plugin provider loaded."""
    return provider in _registered


def devices_of(provider: str) -> list[Any]:
    """What ONNX Runtime lists of a registered provider: one for each hardware device."""
    return [device for device in load_runtime().get_ep_devices() if device.ep_name == provider]


def _distributions() -> Iterator[tuple[str, str]]:
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith("onnxruntime-") and name not in BUILDS:
            found.setdefault(name, distribution.version)
    yield from found.items()
