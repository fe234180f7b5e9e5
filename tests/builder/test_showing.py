"""What `inspect` finds of a model, and the graph that it draws."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from edge_agent.builder.dot import render_dot
from edge_agent.builder.showing import ShownModel, show
from edge_agent.builder.source import read_in_place, sized
from edge_agent.config import Limits
from tests.model.made_models import held, model, node, value
from tests.system.made_models import convolving


def shown(path: Path) -> ShownModel:
    graph = read_in_place(path, Limits())
    return show(graph, sized(graph, {}))


def test_a_model_is_shown_with_segments_scores_and_operators(tmp_path: Path) -> None:
    found = shown(convolving(tmp_path / "net.onnx"))
    assert found.opsets == {"ai.onnx": 17}
    assert [(v.name, str(v)) for v in found.inputs] == [("x", "float32[1,32,28,28]")]
    assert (found.file_nodes, found.nodes, found.functions) == (8, 8, 0)
    assert found.weight_bytes == 4 * 32 * 32 * 9 * 4
    assert found.operators == (("Conv", 4), ("Relu", 4))
    assert [(s.segment.start, s.segment.stop) for s in found.segments] == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 8),
    ]
    score = found.segments[0].score
    # A multiply-add counts two; Relu one per element.
    assert score.operations == 32 * 28 * 28 * (2 * 32 * 9 + 1)
    assert score.parallel_fraction == 1.0
    assert score.score == pytest.approx(score.operations / 5e10 / 2e-5)
    assert [cut.position for cut in found.cuts] == [2, 4, 6]
    assert [h.kind for h in found.hazards] == ["nodes without a name"]
    assert [(p.name, p.from_segment, p.to_segment) for p in found.passages] == [
        ("x", None, 0),
        ("r0", 0, 1),
        ("r1", 1, 2),
        ("r2", 2, 3),
        ("y", 3, None),
    ]


def test_a_score_is_the_same_every_time(tmp_path: Path) -> None:
    path = convolving(tmp_path / "net.onnx")
    assert shown(path) == shown(path)


TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([A-Za-z_0-9]+)|(->|[{}\[\];,=]))', re.DOTALL)


def parse_dot(text: str) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """Labels of the nodes, and (from, to, label) of the edges; fails on anything else than what
    the grammar of DOT calls node_stmt, edge_stmt, attr_stmt and ID = ID."""
    tokens, at = [], 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        assert match, text[at : at + 40]
        quoted, plain, sign = match.groups()
        tokens.append(("id", quoted if quoted is not None else plain) if sign is None else sign)
        at = match.end()
    rest = iter(tokens)
    assert [next(rest) for _ in range(3)] == [("id", "digraph"), ("id", "model"), "{"]
    statements: list[list[object]] = [[]]
    for token in rest:
        if token in (";", "}"):
            statements.append([])
        else:
            statements[-1].append(token)
    labels, edges = {}, []
    for statement in filter(None, statements):
        names = [t[1] if isinstance(t, tuple) else str(t) for t in statement]
        label = names[names.index("label") + 2] if "label" in names else ""
        if "->" in names:
            assert names[3] == "["
            edges.append((names[0], names[2], label))
        elif len(names) > 1 and names[1] == "[":
            labels[names[0]] = label
    return labels, edges


def awkward(folder: Path) -> Path:
    nasty = 'a"b\\c d]; e -> f ["x'
    nodes = [node("Add", ["x", "w"], [nasty]), node("Abs", [nasty], ["y"])]
    made = model(nodes, [value("x", [3])], [value("y", [3]), value("x", [3])], [held("w", [1.0])])
    path = folder / 'we"ird.onnx'
    onnx.save(made, path)
    return path


@pytest.mark.parametrize("make", [awkward, lambda folder: convolving(folder / "net.onnx")])
def test_the_drawing_is_valid_whatever_the_names(make: object, tmp_path: Path) -> None:
    assert callable(make)
    found = shown(make(tmp_path))
    text = render_dot(found)
    labels, edges = parse_dot(text)
    assert labels.keys() == {
        "node",
        *(f"s{i}" for i in range(len(found.segments))),
        *(f"i{i}" for i in range(len(found.inputs))),
        *(f"o{i}" for i in range(len(found.outputs))),
    }
    assert len(edges) == len(found.passages)
    assert {end for edge in edges for end in edge[:2]} <= labels.keys()
    dot = shutil.which("dot")
    if dot is not None:
        subprocess.run([dot, "-Tplain"], input=text, text=True, check=True, capture_output=True)


def test_an_input_that_is_an_output_goes_straight_there(tmp_path: Path) -> None:
    labels, edges = parse_dot(render_dot(shown(awkward(tmp_path))))
    assert ("i0", "o1", "x\\nfloat32[3]") in edges
    assert labels["s0"].startswith("segment 0: nodes 0\\n")
