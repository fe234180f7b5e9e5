"""What tools/testbed answers where it makes no environment; what it makes is tried by CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def answer(programs: Path, *arguments: str) -> tuple[int, list[str]]:
    """(exit status, lines on stdout), where the programs of that folder come first."""
    run = subprocess.run(
        [ROOT / "tools/testbed", *arguments],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode, run.stdout.splitlines()


def put_program(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


@pytest.mark.parametrize(
    "arguments",
    [(), ("gpus",), ("units", "--env", "rocm"), ("units", "--env"), ("units", "--shell", "true")],
)
def test_what_it_does_not_know_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert answer(tmp_path, *arguments) == (2, [])


def test_without_an_nvidia_gpu_cuda_is_not_run_and_not_passed(tmp_path: Path) -> None:
    put_program(tmp_path, "nvidia-smi", "echo 'No devices were found'; exit 6")
    status, lines = answer(tmp_path, "units", "--env", "cuda")
    assert (status, lines[-1]) == (1, "cuda: not run: no NVIDIA GPU here")


def test_a_machine_without_wheels_is_told_why_each_environment_is_left_out(tmp_path: Path) -> None:
    put_program(tmp_path, "uname", '[ "$1" = -s ] && echo Linux || echo aarch64')
    status, lines = answer(tmp_path, "units", "--env", "openvino", "--env", "gpu-npu")
    reason = "not run: its wheels are for Linux on x86_64, this is Linux on aarch64"
    assert (status, lines[-2:]) == (1, [f"openvino: {reason}", f"gpu-npu: {reason}"])


@pytest.mark.long
def test_a_unit_that_is_expected_and_missing_fails_its_tests() -> None:
    command = [sys.executable, "-m", "pytest", "tests/units/test_found.py", "-q"]
    command += ["--expect-units", "cpu,tensorrt", "-k", "tensorrt or exactly"]
    run = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout
    assert "has no unit tensorrt here; refused: " in run.stdout
    assert "2 failed" in run.stdout.splitlines()[-1]
