"""What can be read on the link between devices that run a model together, and what somebody without
a key gets: real agents in network namespaces, which need root."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from bench.fleet import Fleet, fleet
from edge_agent.client import Client
from edge_agent.peers import PublicKey, device_id
from edge_agent.tensors import Arrays
from tests.system.made_models import model, saved, value
from tests.tools.test_lab import missing

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.long,
    pytest.mark.alone,
]
QUICK = "[planning]\nprofile_s = 0.5\nverify_s = 0.5\n"
ROWS, COLUMNS = 64, 256
NODES = 8
REQUESTS = 50
WAIT_S = 240.0
HERE = Path(__file__).parent


class Secrets:
    """A chain of additions whose names and values are known and occur nowhere else."""

    def __init__(self, folder: Path) -> None:
        sign = secrets.token_hex(6)
        self.name = f"model-{sign}"
        self.tensors = [f"value-{sign}-{i}" for i in range(NODES + 1)]
        rng = np.random.default_rng(secrets.randbits(64))
        patterns = [rng.uniform(1.0, 2.0, 4).astype(np.float32) for _ in range(NODES + 1)]
        shape = (ROWS, COLUMNS)
        weights = [np.tile(p, ROWS * COLUMNS // 4).reshape(shape) for p in patterns]
        self.feeds: Arrays = {self.tensors[0]: weights[NODES]}
        nodes, constants = [], []
        values = [weights[NODES]]
        for i in range(NODES):
            constant = f"weight-{sign}-{i}"
            constants.append(numpy_helper.from_array(weights[i], constant))
            takes = [self.tensors[i], constant]
            nodes.append(helper.make_node("Add", takes, [self.tensors[i + 1]]))
            values.append(values[-1] + weights[i])
        self.want = values[-1]
        self.path = saved(
            model(
                helper.make_graph(
                    nodes,
                    "chain",
                    [value(self.tensors[0], [ROWS, COLUMNS])],
                    [value(self.tensors[-1], [ROWS, COLUMNS])],
                    constants,
                )
            ),
            folder / f"{self.name}.onnx",
        )
        onnx.checker.check_model(str(self.path))
        self.hidden: dict[str, bytes] = {
            "the name of the model": self.name.encode(),
            **{f"the name of value {i}": name.encode() for i, name in enumerate(self.tensors)},
            **{f"the name of weight {i}": c.name.encode() for i, c in enumerate(constants)},
            **{f"weight {i}": patterns[i].tobytes() for i in range(NODES)},
            **{f"value {i}": found[0, :4].tobytes() for i, found in enumerate(values)},
        }


@contextmanager
def reading(made: Fleet, device: int, path: Path) -> Iterator[None]:
    """All that the interfaces of a device carry goes to a file."""
    command = [sys.executable, str(HERE / "raw_reader.py"), str(path)]
    process = made.lab.popen(device, command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()


def found_in(path: Path, hidden: dict[str, bytes]) -> list[str]:
    content = path.read_bytes()
    return [what for what, value in hidden.items() if value in content]


def said_in_clear(made: Fleet, hidden: dict[str, bytes], folder: Path) -> None:
    """One device sends all of it to the other one over plain TCP."""
    file = folder / "all"
    file.write_bytes(b"".join(value * 4 for value in hidden.values()))
    receive = (
        "import socket, sys\n"
        "server = socket.create_server((sys.argv[1], 5700))\n"
        "print('ready', flush=True)\n"
        "one, _ = server.accept()\n"
        "while one.recv(65536): pass\n"
    )
    send = (
        "import socket, sys\n"
        "socket.create_connection((sys.argv[1], 5700)).sendall(open(sys.argv[2], 'rb').read())\n"
    )
    address = made.lab.address(1)
    taking = made.lab.popen(
        1, [sys.executable, "-c", receive, address], stdout=subprocess.PIPE, text=True
    )
    assert taking.stdout is not None
    assert taking.stdout.readline() == "ready\n"
    giving = made.lab.popen(0, [sys.executable, "-c", send, address, str(file)])
    assert giving.wait(30) == 0
    assert taking.wait(30) == 0
    taking.stdout.close()


def listening(made: Fleet, device: int) -> set[int]:
    """All ports of a device where somebody listens."""
    lines = Path(f"/proc/{made.pids[device]}/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A"}


def check(client: Client, secret: Secrets) -> None:
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(client.infer, secret.name, secret.feeds) for _ in range(REQUESTS)]
        for one in asked:
            np.testing.assert_allclose(one.result()[secret.tensors[-1]], secret.want, rtol=1e-6)


def test_nothing_of_a_divided_model_is_to_be_read_and_nothing_to_be_had_without_a_key(
    tmp_path: Path,
) -> None:
    secret = Secrets(tmp_path)
    before, after = tmp_path / "before", tmp_path / "after"
    cores = (0, 0)
    with fleet(2, links="0-1=1Gbit", cores=cores, config=QUICK) as made, made.client(0) as client:
        keys = [_key(made, device) for device in (0, 1)]
        ids = {f"the id of d{i}": device_id(key).encode() for i, key in enumerate(keys)}
        with reading(made, 0, before):
            state = client.load(secret.path, secret.name, over=["d1"], wait=True, timeout_s=WAIT_S)
            plan = client.divided(secret.name)
            assert plan is not None, state.dividing_progress
            assert plan.is_used
            assert {stage.name for stage in plan.stages} == {"d0", "d1"}
            check(client, secret)
        with reading(made, 0, after):
            said_in_clear(made, secret.hidden | ids, tmp_path)
        # The reader read all that went over the link: weights, and a value there and one back.
        crossed = sum(stage.received_bytes for stage in plan.stages)
        crossed += 2 * REQUESTS * secret.want.nbytes
        assert before.stat().st_size > crossed
        assert found_in(before, secret.hidden | ids) == []
        # It finds what is in the clear.
        assert found_in(after, secret.hidden | ids) == list(secret.hidden | ids)

        tried = 0
        for port in sorted(listening(made, 0) | listening(made, 1)):
            for device in (0, 1):
                if port not in listening(made, device):
                    continue
                for kind in ("plain", "text", "null", "unknown"):
                    got = _without_key(made, device, port, kind, keys[device])
                    assert got["beyond_greeting"] == 0, (device, port, kind, got)
                    if kind == "plain":
                        assert got["received"] > 0, "nobody was reached"
                    tried += 1
        # Both agents, and a worker of one of them.
        assert tried >= 3 * 4
        check(client, secret)
        left = client.divided(secret.name)
        assert left is not None
        assert not any(left.lost)


def _key(made: Fleet, device: int) -> PublicKey:
    with made.client(device) as client:
        return client.peers().key


def _without_key(made: Fleet, device: int, port: int, kind: str, key: str) -> dict[str, int]:
    """What somebody on the other device gets there."""
    script = str(HERE / "no_key.py")
    command = [sys.executable, script, made.lab.address(device), str(port), kind, key]
    process = made.lab.popen(1 - device, command, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    found: dict[str, int] = json.loads(out)
    return found
