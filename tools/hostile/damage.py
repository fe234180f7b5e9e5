"""Knows how a sound model becomes a hostile one: by its bytes, and by its protos."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

_NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 16, 17, 64, 127, 255, 1000, 65_535, 10**6, 2**24, 2**31 - 1, 2**31),
    *(2**32, 2**32 + 1, 2**40, 2**53, 2**62, 2**63 - 1, -2, -(2**31), -(2**63)),
)
_REALS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    *(
        "",
        "x",
        "y",
        "w",
        "a",
        "\0",
        "a\nb",
        "é" * 3,
        "\x1b[31m",
        "n" * 70_000,
        "../w.bin",
        "B",
        "N",
    ),
    *("ai.onnx", "ai.onnx.ml", "com.microsoft", "com.example", "body", "value", "offset", "length"),
)
_STRINGS = (b"", b"\xff\xfe", b"NOTSET", b"SAME_UPPER", b"x" * 5000, b"ij,jk->ik", b"a" * 60)
_OPERATORS = (
    *("Add", "Abs", "Identity", "Reshape", "Expand", "Tile", "Range", "ConstantOfShape", "Loop"),
    *("If", "Scan", "Constant", "Concat", "Gather", "Split", "Slice", "Pad", "Resize", "Conv"),
    *("Cast", "OneHot", "Where", "Squeeze", "Unsqueeze", "MatMul", "Transpose", "SequenceAt"),
    *(
        "OptionalGetElement",
        "Dropout",
        "TopK",
        "NonZero",
        "Shape",
        "EPContext",
        "Twice",
        "GatherND",
    ),
)


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """`content` with one to eight changes that know nothing of its format."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if changed:
            rng.choice(_ON_BYTES)(changed, rng)
    return bytes(changed)


def _flip(changed: bytearray, rng: random.Random) -> None:
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)


def _overwrite(changed: bytearray, rng: random.Random) -> None:
    changed[rng.randrange(len(changed))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _truncate(changed: bytearray, rng: random.Random) -> None:
    del changed[rng.randrange(len(changed)) :]


def _cut_out(changed: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(changed))
    del changed[start : start + rng.randrange(1, 40)]


def _double(changed: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(changed))
    piece = changed[start : start + rng.randrange(1, 200)]
    at = rng.randrange(len(changed))
    changed[at:at] = piece * rng.choice((1, 2, 50))


def _varint(changed: bytearray, rng: random.Random) -> None:
    number = rng.choice(_NUMBERS) % 2**64
    encoded = bytearray()
    while True:
        encoded.append(number & 0x7F | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            break
    at = rng.randrange(len(changed))
    changed[at : at + rng.choice((0, 1, len(encoded)))] = encoded


_ON_BYTES = (_flip, _flip, _overwrite, _truncate, _cut_out, _double, _varint)


def damaged_model(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """A copy of `model` with one to six changes to its fields; it can still be serialised."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 6))):
        if rng.random() < 0.5:
            _damage_field(changed, rng)
        else:
            rng.choice(_ON_GRAPHS)(rng.choice(list(_graphs(changed.graph))), changed, rng)
    return changed


def _messages(root: Message) -> Iterator[Message]:
    yield root
    for descriptor, content in root.ListFields():
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in content if _is_repeated(descriptor) else (content,):
                yield from _messages(inner)


def _is_repeated(descriptor: FieldDescriptor) -> bool:
    return bool(descriptor.is_repeated)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _value(descriptor: FieldDescriptor, rng: random.Random, near: Sequence[str]) -> Any:
    match descriptor.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if descriptor.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice(_STRINGS)
        case FieldDescriptor.CPPTYPE_STRING:
            if descriptor.name == "op_type":
                return rng.choice(_OPERATORS)
            return rng.choice((*_TEXTS, *near))
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return rng.choice(_REALS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice(descriptor.enum_type.values).number
        case FieldDescriptor.CPPTYPE_INT32:
            if descriptor.name in ("data_type", "elem_type"):
                return rng.randrange(27)
            return rng.choice([n for n in _NUMBERS if -(2**31) <= n < 2**31])
        case FieldDescriptor.CPPTYPE_UINT64:
            return rng.choice(_NUMBERS) % 2**64
        case _:
            return rng.choice((*_NUMBERS, rng.randrange(25)))


def _damage_field(root: onnx.ModelProto, rng: random.Random) -> None:
    message: Any = rng.choice(list(_messages(root)))
    filled = [descriptor for descriptor, _ in message.ListFields()]
    every = list(message.DESCRIPTOR.fields)
    descriptor = rng.choice(filled if filled and rng.random() < 0.8 else every)
    content = getattr(message, descriptor.name)
    if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
        _damage_messages(root, message, descriptor, content, rng)
    elif _is_repeated(descriptor):
        _damage_list(content, descriptor, rng)
    elif rng.random() < 0.25:
        message.ClearField(descriptor.name)
    elif isinstance(content, bytes) and content and rng.random() < 0.7:
        setattr(message, descriptor.name, damaged_bytes(content, rng))
    else:
        setattr(message, descriptor.name, _value(descriptor, rng, list(_names(root))))


def _damage_messages(
    root: Message, message: Message, descriptor: FieldDescriptor, content: Any, rng: random.Random
) -> None:
    alike = [m for m in _messages(root) if m.DESCRIPTOR is descriptor.message_type]
    copy = type(rng.choice(alike))() if alike else None
    if copy is not None:
        copy.CopyFrom(rng.choice(alike))
    if not _is_repeated(descriptor):
        if copy is None or rng.random() < 0.4:
            message.ClearField(descriptor.name)
        else:
            content.CopyFrom(copy)
    elif copy is not None and rng.random() < 0.5:
        content.extend([copy] * rng.choice((1, 1, 1, 2, 30)))
    elif content:
        action = rng.choice(("delete", "reverse", "add"))
        if action == "delete":
            del content[rng.randrange(len(content))]
        elif action == "add":
            content.add()
        else:
            turned = list(content)[::-1]
            copies = [type(turned[0])() for _ in turned]
            for new, old in zip(copies, turned, strict=True):
                new.CopyFrom(old)
            del content[:]
            content.extend(copies)


def _damage_list(content: Any, descriptor: FieldDescriptor, rng: random.Random) -> None:
    if content and rng.random() < 0.6:
        at = rng.randrange(len(content))
        if rng.random() < 0.4:
            del content[at]
        elif isinstance(content[at], bytes) and content[at] and rng.random() < 0.7:
            content[at] = damaged_bytes(content[at], rng)
        else:
            content[at] = _value(descriptor, rng, [])
    else:
        content.extend(_value(descriptor, rng, []) for _ in range(rng.choice((1, 1, 2, 5, 70))))


def _names(model: onnx.ModelProto) -> Iterator[str]:
    for graph in _graphs(model.graph):
        yield from _names_in(graph)


def _names_in(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output


# ---- changes that know what a graph is

_Change = Callable[[onnx.GraphProto, onnx.ModelProto, random.Random], object]


def _retarget(graph: onnx.GraphProto, model: onnx.ModelProto, rng: random.Random) -> None:
    """An edge leads to another value: a cycle, another type, an outer name."""
    readers = [node for node in graph.node if node.input]
    if readers:
        node = rng.choice(readers)
        names = list(_names(model) if rng.random() < 0.3 else _names_in(graph))
        node.input[rng.randrange(len(node.input))] = rng.choice(names) if names else ""


def _rename(graph: onnx.GraphProto, _model: onnx.ModelProto, rng: random.Random) -> None:
    """A value gets the name of another, everywhere in its graph."""
    names = list(_names_in(graph))
    if not names:
        return
    old, new = rng.choice(names), rng.choice((*names, *_TEXTS))
    for node in graph.node:
        for texts in (node.input, node.output):
            for at, text in enumerate(texts):
                if text == old:
                    texts[at] = new
    if rng.random() < 0.5:
        for value in (*graph.input, *graph.output, *graph.initializer):
            if value.name == old:
                value.name = new


def _copy_node(graph: onnx.GraphProto, _model: onnx.ModelProto, rng: random.Random) -> None:
    """A node twice, the second time with names of its own."""
    if graph.node:
        node = graph.node.add()
        node.CopyFrom(rng.choice(graph.node[:-1] or graph.node))
        for at, name in enumerate(node.output):
            node.output[at] = f"{name}_{rng.randrange(1000)}"
            if rng.random() < 0.5 and graph.node[0].input:
                reader = rng.choice(graph.node)
                if reader.input:
                    reader.input[rng.randrange(len(reader.input))] = node.output[at]


def _shuffle(graph: onnx.GraphProto, _model: onnx.ModelProto, rng: random.Random) -> None:
    """The nodes in another order."""
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def _other_operator(graph: onnx.GraphProto, model: onnx.ModelProto, rng: random.Random) -> None:
    if graph.node:
        node = rng.choice(graph.node)
        node.op_type = rng.choice((*_OPERATORS, *(n.op_type for n in model.graph.node)))
        if rng.random() < 0.2:
            node.domain = rng.choice(("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "own"))


def _sizes(graph: onnx.GraphProto, _model: onnx.ModelProto, rng: random.Random) -> None:
    """Shapes that are stored or computed become huge, negative or zero."""
    numbers = [t for t in graph.initializer if t.int64_data or t.data_type == 7]
    if numbers and rng.random() < 0.7:
        tensor = rng.choice(numbers)
        count = max(1, len(tensor.int64_data) or len(tensor.raw_data) // 8)
        tensor.ClearField("raw_data")
        del tensor.int64_data[:]
        tensor.int64_data.extend(rng.choice(_NUMBERS) for _ in range(count))
    elif graph.input:
        declared = rng.choice((*graph.input, *graph.output)).type.tensor_type.shape
        for dim in declared.dim:
            if rng.random() < 0.5:
                dim.dim_value = rng.choice(_NUMBERS)


def _add_output(graph: onnx.GraphProto, _model: onnx.ModelProto, rng: random.Random) -> None:
    names = list(_names_in(graph))
    if names:
        graph.output.add(name=rng.choice(names))


def _nest(graph: onnx.GraphProto, _model: onnx.ModelProto, rng: random.Random) -> None:
    """The graph as the body of a node of itself, up to eight deep."""
    for _ in range(rng.choice((1, 1, 2, 8))):
        inner = onnx.GraphProto.FromString(graph.SerializeToString())
        if len(inner.SerializeToString()) > 200_000:
            return
        del inner.input[:]
        node = graph.node.add(op_type="If", input=["c"], output=["nested"])
        if rng.random() < 0.5:
            graph.initializer.add(name="c", data_type=9, int32_data=[1])
        for name in ("then_branch", "else_branch"):
            attribute = node.attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
            attribute.g.CopyFrom(inner)


def _call(_graph: onnx.GraphProto, model: onnx.ModelProto, rng: random.Random) -> None:
    """A function that calls itself or another."""
    if model.functions:
        caller, called = rng.choice(model.functions), rng.choice(model.functions)
        node = caller.node.add(op_type=called.name, domain=called.domain)
        node.input.extend(caller.input[: len(called.input)])
        node.output.extend(f"{name}_{rng.randrange(9)}" for name in called.output)
        if not any(o.domain == called.domain for o in caller.opset_import):
            caller.opset_import.add(domain=called.domain, version=1)


def _opset(_graph: onnx.GraphProto, model: onnx.ModelProto, rng: random.Random) -> None:
    if model.opset_import:
        rng.choice(model.opset_import).version = rng.choice((*range(1, 27), *_NUMBERS))


_ON_GRAPHS: tuple[_Change, ...] = (
    *(_retarget, _retarget, _rename, _copy_node, _shuffle, _other_operator, _other_operator),
    *(_sizes, _sizes, _add_output, _nest, _call, _opset),
)
