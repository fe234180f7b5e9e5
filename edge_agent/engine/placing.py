"""How a session gets onto an execution provider, and the evidence that its nodes run there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from edge_agent.devices import ProviderUse
from edge_agent.engine.plugins import devices_of, register
from edge_agent.engine.providers import known_provider
from edge_agent.engine.runtime import CPU, load_runtime

ON_CPU = ProviderUse(provider=CPU)
_ONLY_THERE: Final = "session.disable_cpu_ep_fallback"
_RECORDED: Final = "session.record_ep_graph_assignment_info"
_KERNEL: Final = "_kernel_time"


def create(
    source: Path | bytes,
    options: Any,
    use: ProviderUse = ON_CPU,
    *,
    is_whole: bool = True,
    disabled_optimizers: Any = None,
) -> Any:
    """An InferenceSession on that provider that fails where by default it would try another.

    `is_whole`: every node must be taken by the provider; else those that it refuses run on the
    processor. `options` are used up.

    Raises: what ONNX Runtime raises.
    """
    runtime = load_runtime()
    if is_whole and use.provider != CPU:
        options.add_session_config_entry(_ONLY_THERE, "1")
    more: dict[str, Any] = {"enable_fallback": 0, "disabled_optimizers": disabled_optimizers}
    if use.library:
        register(use.provider, use.library)
        devices = devices_of(use.provider)
        if not devices:
            raise RuntimeError(f"{use.provider} finds no hardware that it runs on")
        options.add_provider_for_devices(devices[:1], dict(use.options))
    else:
        known = known_provider(use.provider)
        if known is not None and known.config_prefix:
            for key, value in use.options:
                options.add_session_config_entry(f"{known.config_prefix}{key}", value)
        more["providers"] = [(use.provider, dict(use.options))]
    return runtime.InferenceSession(
        source if isinstance(source, bytes) else str(source), options, **more
    )


def record(options: Any) -> None:
    """Have the session of these SessionOptions keep what `recorded` tells."""
    options.add_session_config_entry(_RECORDED, "1")


def recorded(session: Any) -> Mapping[str, tuple[str, ...]]:
    """Names of nodes by the provider that they were assigned to, as far as the session tells, for
    which its options must `record`.

    ONNX Runtime 1.27 leaves out most or all of WebGpuExecutionProvider's.
    """
    found: dict[str, list[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found.setdefault(part.ep_name, []).extend(node.name for node in part.get_nodes())
    return {provider: tuple(names) for provider, names in found.items()}


def kernels(profile: Iterable[Mapping[str, Any]]) -> Mapping[str, tuple[str, ...]]:
    """Names of the nodes that ran by provider, once for each run, of a profile that ONNX Runtime
    wrote."""
    found: dict[str, list[str]] = {}
    for event in profile:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            name = event["name"].removesuffix(_KERNEL)
            found.setdefault(event["args"]["provider"], []).append(name)
    return {provider: tuple(names) for provider, names in found.items()}
