"""A channels-last version of a subgraph: what the NHWC layout means on ONNX Runtime's CPU provider.

ONNX has no layouts, so the layout is in the graph: transposes stand at the borders, operators have
their axes mapped, and where the provider has a kernel that works channels-last, it is used. Border
values keep their names, types and orders of axes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import external_data_helper, helper

from edge_agent.model.nhwc_axes import Rule
from edge_agent.model.nhwc_choice import Step, choose_orders
from edge_agent.model.nhwc_facts import (
    Facts,
    all_names,
    captured_names,
    drop_dead_nodes,
    gather_facts,
    updated,
    used_names,
)
from edge_agent.model.nhwc_folds import fold_neighbours
from edge_agent.model.nhwc_forms import (
    IDENTITY,
    MICROSOFT,
    TO_LAST,
    Forms,
    Perm,
    transpose_perm,
)
from edge_agent.model.nhwc_rules import rule_for
from edge_agent.model.nhwc_unsigned import make_unsigned
from edge_agent.tensors import TensorName, TensorSpec

DISABLED_OPTIMIZERS = ("NhwcTransformer",)
"""What to switch off in ONNX Runtime when it compiles a rewritten graph at ORT_ENABLE_ALL.

The transformer would move the convolutions that the choice left channels-first, grouped ones among
them, which are slower channels-last: ShuffleNet with uint8 images took 16 ms instead of 10."""
_OLDEST_OPSET = 9
_EXTERNAL_BYTES = 1024
_INLINE_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NhwcRewrite:
    """What became of a graph; compile it at ORT_ENABLE_ALL without `DISABLED_OPTIMIZERS`."""

    changed: bool
    """Whether a file was written; False where channels-last would be the same graph."""
    transposes: int
    """How many Transpose nodes over four axes the result has, or the source if it stays."""
    converted: tuple[tuple[str, int], ...]
    """(operator, how often) that became another kernel, most frequent first, ties by name."""
    detail: str


def rewrite_nhwc(
    source: Path,
    destination: Path,
    specs: Mapping[TensorName, TensorSpec] | None = None,
    *,
    allow_saturation: bool = False,
) -> NhwcRewrite:
    """Write `source` to `destination` so that the images inside are channels-last where it pays.

    `specs` are types and shapes that the caller knows better than shape inference finds them.
    External data stay where they are if both files lie in one folder; otherwise, or where the new
    weights are large, they go to a file beside `destination` that is named after it.

    Signed quantised images become unsigned. Their weights then become unsigned as well, so that
    every product is exact; with `allow_saturation`, those of QDQ models stay int8, as in the
    graphs that ONNX Runtime itself makes of such models, which is up to 1.6 times quicker on
    x86-64 without VNNI and saturates there where two neighbouring products exceed 16 bits.

    Raises: OSError where a file cannot be read or written.
    """
    model = onnx.load(source, load_external_data=False)
    facts = gather_facts(model, source.parent, specs)
    before = sum(transpose_perm(node) is not None for node in model.graph.node)
    if facts.opset < _OLDEST_OPSET:
        return _unchanged(before, f"opset {facts.opset} is older than {_OLDEST_OPSET}")
    fused = fold_neighbours(model, facts)
    facts = updated(facts, model, source.parent)
    unsigned = make_unsigned(model, facts, fused if allow_saturation else frozenset())
    facts = updated(facts, model, source.parent, unsigned)
    converted = _rewrite(model, facts)
    after = sum(transpose_perm(node) is not None for node in model.graph.node)
    if not (converted or fused or unsigned) and after >= before:
        detail = f"no operator gains and no transpose cancels ({before} in the graph)"
        return _unchanged(before, detail)
    _save(model, source, destination)
    counts = sorted(converted.items(), key=lambda item: (-item[1], item[0]))
    names = ", ".join(f"{count} {name}" for name, count in counts) or "nothing"
    return NhwcRewrite(
        changed=True,
        transposes=after,
        converted=tuple(counts),
        detail=f"converted {names}; {before} transposes became {after}; "
        f"{len(unsigned)} signed values became unsigned",
    )


def _unchanged(transposes: int, detail: str) -> NhwcRewrite:
    return NhwcRewrite(changed=False, transposes=transposes, converted=(), detail=detail)


def _rewrite(model: onnx.ModelProto, facts: Facts) -> Counter[str]:
    """Rewrite in place; the operators that became another kernel."""
    graph = model.graph
    rules = [rule_for(node, facts) for node in graph.node]
    steps = [_step(node, rule) for node, rule in zip(graph.node, rules, strict=True)]
    orders = choose_orders(
        steps,
        [value.name for value in graph.input],
        [value.name for value in graph.output],
        facts.transpose_ns,
    )
    forms = Forms(constants=facts.constants, taken=set(all_names(graph)))
    converted: Counter[str] = Counter()
    for node, rule, order in zip(graph.node, rules, orders, strict=True):
        _write(forms, node, rule, order)
        if rule is not None and rule.kernel is not None and order == TO_LAST:
            converted[rule.kernel] += 1
    forms.ensure_named(value.name for value in graph.output)
    _replace(model, forms)
    return converted


def _step(node: onnx.NodeProto, rule: Rule | None) -> Step:
    if (perm := transpose_perm(node)) is not None:
        images, results = (node.input[0],), (node.output[0],)
        return Step(images=images, results=results, plain=(), transposed=perm)
    if rule is not None:
        return rule.step
    return Step(images=(), results=(), plain=(*node.input, *captured_names(node)))


def _write(forms: Forms, node: onnx.NodeProto, rule: Rule | None, order: Perm | None) -> None:
    if (perm := transpose_perm(node)) is not None:
        forms.alias(node.output[0], node.input[0], perm)
        return
    if rule is not None and rule.write is not None and node.op_type == "DequantizeLinear":
        write = rule.write
        forms.remake[node.output[0]] = lambda other: write(forms, other)
    if order is not None and order != IDENTITY:
        assert rule is not None
        assert rule.write is not None
        rule.write(forms, order)
        return
    forms.ensure_named(captured_names(node))
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:]
    copy.input.extend(forms.plain(name) for name in node.input)
    if rule is not None:
        for name in rule.step.results:
            forms.put(name, IDENTITY)
    forms.nodes.append(copy)


def _replace(model: onnx.ModelProto, forms: Forms) -> None:
    """Put the written nodes into the model and drop what nothing uses any more."""
    graph = model.graph
    overridable = {value.name for value in graph.input}
    before = set(used_names(graph))
    drop_dead_nodes(graph, forms.nodes)
    graph.initializer.extend(forms.initializers)
    used = set(used_names(graph)) | overridable
    dead = [t for t in graph.initializer if t.name not in used]
    for tensor in dead:
        graph.initializer.remove(tensor)
    made = {name for node in graph.node for name in node.output}
    for value in [v for v in graph.value_info if v.name not in made and v.name in before]:
        graph.value_info.remove(value)
    domains = {o.domain for o in model.opset_import}
    if MICROSOFT not in domains and any(n.domain == MICROSOFT for n in graph.node):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))


def _save(model: onnx.ModelProto, source: Path, destination: Path) -> None:
    if source.parent.resolve() != destination.parent.resolve():
        external_data_helper.load_external_data_for_model(model, str(source.parent))
    inline_bytes = sum(len(t.raw_data) for t in model.graph.initializer)
    if inline_bytes <= _INLINE_LIMIT_BYTES:
        onnx.save(model, destination)
        return
    location = f"{destination.name}.weights"
    (destination.parent / location).unlink(missing_ok=True)
    onnx.save(
        model,
        destination,
        save_as_external_data=True,
        location=location,
        size_threshold=_EXTERNAL_BYTES,
    )
