"""The examples of the README that plan without an agent run as they are printed there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.made_models import convolving

ROOT = Path(__file__).resolve().parents[2]


def _example(mark: str) -> str:
    readme = (ROOT / "README.md").read_text()
    found = re.search(rf"<!-- {mark} -->\s*```python\n(.*?)```", readme, re.DOTALL)
    assert found
    return found[1]


def test_what_is_planned_is_kept_or_replaced_and_simulated(tmp_path: Path) -> None:
    net = convolving(tmp_path / "net.onnx", blocks=6, channels=64)
    script = _example("replan") + _example("simulate")
    command = [sys.executable, "-W", "error", "-c", script, str(net)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    first, again, rates, latencies, answered = done.stdout.splitlines()
    latency_s, gap, *_ = first.split()
    assert (float(latency_s) > 0, gap) == (True, "0.0")
    assert re.search(r"\[0-\d+\] (raspberry-pi-4-4gb|jetson-orin-nano-8gb)/", first)
    assert re.match(r"(True|False) deployed [\d.]+ ms, best [\d.]+ ms: gain [\d.]+%", again)
    simulated, predicted = map(float, rates.split())
    assert simulated == pytest.approx(predicted, rel=0.02)
    middle_s, last_s, count = map(float, latencies.split())
    assert float(latency_s) == pytest.approx(middle_s, rel=0.02)
    assert (last_s >= middle_s, count) == (True, 300)
    before, after = map(float, answered.split())
    assert before == pytest.approx(100.0, rel=0.02)
    assert 0.0 < after <= before + 1.0
