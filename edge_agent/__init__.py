"""edge-agent: runs any ONNX model on the compute units of edge devices, divided as it pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge_agent.client import Client as Client

__all__ = ["Client"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Loaded on first use: the worker and the builder import this package and need no client.
    if name == "Client":
        from edge_agent.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
