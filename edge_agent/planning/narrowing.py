"""On which links float32 tensors are sent in fewer bits.

Every step of a transfer is linear in its bytes, so that narrowing pays for all tensors of a link or
for none (but for what each message takes, which is left out): where

    (1 − ratio) · (send + wire + receive) > narrow + widen

in seconds per byte of tensors, all steps one after the other.
"""

from __future__ import annotations

from dataclasses import replace

from edge_agent.planning.estimate import ENCRYPTED_S_PER_BYTE
from edge_agent.problems import Link, PlannedDevice
from edge_agent.summaries import ModelSummary
from edge_agent.tensors import ElementType, Shape, TensorSpec, WireType, size_bytes

_NARROW_S_PER_BYTE = {WireType.FP16: 0.2e-9, WireType.INT8: 0.3e-9}
_WIDEN_S_PER_BYTE = {WireType.FP16: 0.1e-9, WireType.INT8: 0.1e-9}
"""Of one core of a desktop processor, for each byte of float32 (engine/narrowing.py says how)."""


def narrowed(
    link: Link,
    source: PlannedDevice,
    target: PlannedDevice,
    wire: WireType,
    summary: ModelSummary,
) -> Link:
    """The link with float32 tensors sent as `wire`, if that pays; else as it is.

    A processor that takes longer than a desktop's to send a byte is taken to need as much longer
    to narrow it.
    """
    share = float32_share(summary)
    ratio = 1.0 - share * (1.0 - wire.ratio)
    narrow_s_per_byte = share * _NARROW_S_PER_BYTE[wire] * _pace(source.send_s_per_byte)
    widen_s_per_byte = share * _WIDEN_S_PER_BYTE[wire] * _pace(target.receive_s_per_byte)
    steps = source.send_s_per_byte + 1.0 / link.goodput_bytes_per_s + target.receive_s_per_byte
    saved = (1.0 - ratio) * steps
    if saved <= narrow_s_per_byte + widen_s_per_byte:
        return link
    return replace(
        link,
        wire=wire,
        ratio=ratio,
        narrow_s_per_byte=narrow_s_per_byte,
        widen_s_per_byte=widen_s_per_byte,
    )


def as_it_is(link: Link) -> Link:
    """The link as it is for what is never narrowed, such as weights."""
    return replace(link, wire=None, ratio=1.0, narrow_s_per_byte=0.0, widen_s_per_byte=0.0)


def float32_share(summary: ModelSummary) -> float:
    """Of the bytes of all that may cross from one device to another, what part is float32; of the
    tensors, if not all sizes are known."""
    specs = [*summary.inputs, *summary.outputs]
    for cut in summary.cuts:
        specs += cut.crossing
    is_fixed = all(_dims(spec) is not None for spec in specs)
    sizes = [size_bytes(s.element_type, _dims(s) or ()) if is_fixed else 1 for s in specs]
    floats = [
        size
        for size, spec in zip(sizes, specs, strict=True)
        if spec.element_type is ElementType.FLOAT32
    ]
    return sum(floats) / sum(sizes) if sum(sizes) else 0.0


def _dims(spec: TensorSpec) -> Shape | None:
    """None: not all are known."""
    dims = tuple(dim for dim in spec.dims or () if isinstance(dim, int))
    return dims if spec.dims is not None and len(dims) == len(spec.dims) else None


def _pace(s_per_byte: float) -> float:
    return max(s_per_byte / ENCRYPTED_S_PER_BYTE, 0.1)
