"""A model file cannot set the options of its own session, whatever the environment allows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import psutil
import pytest

from edge_agent.errors import ModelRefused
from tests.system.conftest import StartAgent
from tests.system.made_models import adding, saved, x
from tests.system.running import worker_pid

PROFILES = "onnxruntime_profile__*"
BARE_RUN = """
import sys, onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
"""


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """A model that asks for three more threads and for a profile in the current folder."""
    made = onnx.load(adding(tmp_path / "m.onnx"))
    options = {"intra_op_num_threads": 4, "enable_profiling": 1}
    made.metadata_props.add(key="ort_config", value=json.dumps({"session_options": options}))
    return saved(made, tmp_path / "configured.onnx")


def test_onnx_runtime_alone_would_obey_the_model(configured: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "ORT_LOAD_CONFIG_FROM_MODEL": "1", "ORT_DISABLE_TELEMETRY": "1"}
    for name in ("1", "0"):
        environment["ORT_LOAD_CONFIG_FROM_MODEL"] = name
        folder = tmp_path / name
        folder.mkdir()
        subprocess.run(
            [sys.executable, "-c", BARE_RUN, str(configured)],
            env=environment,
            cwd=folder,
            check=True,
            capture_output=True,
        )
        assert len(list(folder.glob(PROFILES))) == int(name)


@pytest.mark.long
def test_a_worker_and_a_builder_do_not_obey_the_model(
    start: StartAgent, configured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    monkeypatch.setenv("ORT_INTRA_OP_NUM_THREADS", "7")
    monkeypatch.setenv("MLAS_NCHWC_FSS_TARGET", "1")
    monkeypatch.chdir(tmp_path)
    with start().client() as client:
        client.load(adding(tmp_path / "plain.onnx"), threads=1)
        client.load(configured, threads=1, wait=True)
        assert client.infer("configured", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
        threads = [
            psutil.Process(worker_pid(client, name)).num_threads()
            for name in ("plain", "configured")
        ]
        seen = psutil.Process(worker_pid(client, "configured")).environ()
    assert threads[0] == threads[1]
    kept = {name for name in seen if name.startswith(("ORT_", "MLAS_"))}
    assert kept == {"ORT_DISABLE_TELEMETRY"}
    assert list(tmp_path.glob(PROFILES)) == []


def test_a_compiled_program_inside_a_model_is_refused_by_name(
    start: StartAgent, tmp_path: Path
) -> None:
    path = adding(tmp_path / "m.onnx", operator="EPContext", domain="com.microsoft")
    with (
        start().client() as client,
        pytest.raises(ModelRefused, match=r"com\.microsoft::EPContext is not accepted.*load the"),
    ):
        client.load(path)
