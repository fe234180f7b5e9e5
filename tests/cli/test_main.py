"""The command line: arguments, exit codes, and where things are printed."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import pytest

from edge_agent import __version__
from edge_agent.cli import start
from edge_agent.cli.main import EXIT_CODES, PART_OF, main, parser
from edge_agent.errors import (
    Busy,
    DeadlineExceeded,
    EdgeAgentError,
    InputMismatch,
    ModelQuarantined,
    ModelRefused,
    ProtocolError,
    RunFailed,
    StorageError,
    UnknownModel,
)
from edge_agent.wire.messages import Load, Models
from tests.fake_agent import Asked, FakeAgent, state
from tests.system.made_models import convolving

COMMANDS = (
    *("serve", "load", "unload", "models", "status", "devices", "replan", "plan", "infer"),
    *("split", "inspect", "doctor"),
)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["lode"],
        ["load"],
        ["load", "a.onnx", "b.onnx"],
        ["load", "a.onnx", "--target", "speed"],
        ["load", "a.onnx", "--threads", "many"],
        ["infer"],
        ["infer", "m", "--repeat", "x"],
        ["plan"],
        ["serve", "--max-requests", "0"],
        ["serve", "--max-requests", "-3"],
        ["serve", "--max-requests", "lots"],
        ["serve", "--log-level", "loud"],
        ["models", "--no-such-option"],
    ],
)
def test_a_wrong_command_line_ends_with_2_and_a_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("usage: edge-agent")


def test_a_count_that_is_none_is_told_what_was_got(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--max-requests", "lots"])
    assert "got lots, want a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_the_shared_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--socket", "--config", "--json"))


def test_the_help_lists_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)
    assert EXIT_CODES in shown


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"edge-agent {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--state", ""], "--state: got an empty text, want a name or value; give it"),
        (["models", "--config", ""], "--config: got an empty text"),
        (["models", "--socket", ""], "--socket: got an empty text"),
        (["load", ""], "MODEL: got an empty text, want a name or value; give it one"),
        (["load", "m.onnx", "--samples", ""], "--samples: got an empty text"),
        (["split", "", "--parts", "2"], "MODEL: got an empty text"),
        (["split", "/", "--parts", "2"], "/: is no regular file; name a model file"),
        (["split", "m.onnx", "--parts", "2", "--out", ""], "--out: got an empty text"),
        (["devices", "--export", ""], "--export: got an empty text"),
        (["devices", "--export", "x", "--model", ""], "--model: got an empty text"),
        (["plan", "", "--devices", "a"], "MODEL: got an empty text"),
        (["plan", "m.onnx", "--devices", ""], "--devices: got an empty text"),
        (["plan", "m.onnx", "--devices", "a", "--stats", ""], "--stats: got an empty text"),
    ],
)
def test_an_empty_text_is_neither_this_folder_nor_the_default(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) in (2, 4)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["load", "m.onnx", "--threads", "0"], "--threads: got 0, want 1 to 4096"),
        (["load", "m.onnx", "--threads", "9999"], "--threads: got 9999"),
        (
            ["load", "m.onnx", "--shape", "x=1", "--shape", "x=2"],
            "--shape x=2: x has a shape already; leave one out",
        ),
        (["load", "m.onnx", "--shape", "x"], "--shape x: want INPUT=SIZExSIZE"),
        (["load", "m.onnx", "--shape", "x=1", "y=wide"], "--shape y=wide: want INPUT=SIZExSIZE"),
        (["load", "m.onnx", "--shape", "x=1xB"], "--shape x=1xB: want"),
        (["load", "m.onnx", "--shape", "x=1x-3"], "--shape x=1x-3: want"),
        (["load", "m.onnx", "--shape", "=1x3"], "--shape =1x3: want"),
        (["load", "m.onnx", "--pin", "a"], "--pin a: want PATTERN=UNIT, e.g. '/layer4/*=npu'"),
        (["load", "m.onnx", "--pin", "a="], "--pin a=: want PATTERN=UNIT"),
        (["load", "m.onnx", "--pin", "=gpu0"], "--pin =gpu0: want PATTERN=UNIT"),
        (
            ["load", "m.onnx", "--pin", "a=gpu0", "--pin", "a=npu0"],
            "--pin a=npu0: a is pinned to gpu0 too",
        ),
        (["load", "m.onnx", "--subgraphs", "0"], "--subgraphs: got 0, want 1 to 4096"),
        (["load", "m.onnx", "--subgraphs", "9999"], "--subgraphs: got 9999, want 1 to 4096"),
        (["load", "m.onnx", "--allow", "fp8"], 'allow: got "fp8", want fp16 or fp16=BOUND'),
        (["load", "m.onnx", "--allow", "fp16="], 'allow: got "fp16=", want fp16'),
        (["load", "m.onnx", "--allow", "fp16=1"], 'allow: got "fp16=1", want fp16'),
        (["load", "m.onnx", "--allow", "fp16=nan"], 'allow: got "fp16=nan", want fp16'),
        (["load", "m.onnx", "--wire", "fp8"], 'wire: got "fp8", want one of fp16, int8, or with'),
        (["load", "m.onnx", "--wire", "int8=2"], 'wire: got "int8=2", want one of fp16, int8'),
        (["load", "m.onnx", "--allow", "fp16=-0.1"], 'allow: got "fp16=-0.1", want fp16'),
        (["infer", "m", "--deadline", "-1"], "--deadline: got -1, want 0 to 1e+06"),
        (["infer", "m", "--deadline", "nan"], "--deadline: got nan, want 0 to 1e+06"),
        (["infer", "m", "--deadline", "inf"], "--deadline: got inf, want 0 to 1e+06"),
        (["infer", "m", "--outputs", ""], "--outputs: got an empty text, want a name or value"),
        (["infer", "m", "--outputs", "y,"], '--outputs: got "y,", want NAME,NAME'),
        (["infer", "m", "--repeat", "0"], "--repeat: got 0, want at least 1"),
        (["infer", "m", "--seed", "-1"], "--seed: got -1, want at least 0"),
        (["infer", "m", "--input", "x"], "--input x: want NAME=FILE.npy"),
        (["infer", "m", "--input", "=x.npy"], "want NAME=FILE.npy"),
        (["infer", "m", "--input", "x="], "want NAME=FILE.npy"),
        (["infer", "m", "--input", "x=/no/such.npy"], "cannot read /no/such.npy: No such file"),
        (["infer", "m", "--input", "x=/"], "cannot read /: Is a directory"),
    ],
)
def test_a_wrong_option_ends_with_2_and_says_what_was_got(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeAgent() as agent:
        assert main([*arguments, "--socket", str(agent.path)]) == 2
        assert agent.asked == []
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"edge-agent {arguments[0]}: ")
    assert says in shown.err


def test_pins_are_sent_as_they_were_given() -> None:
    with FakeAgent(lambda asked: asked.answer(Models((state(),)))) as agent:
        pins = ("--pin", "/b[12]/*=npu0", "--pin", "a=b=cpu", "--pin", "/b[12]/*=npu0")
        assert main(["load", "m.onnx", *pins, "--socket", str(agent.path)]) == 0
        (asked,) = agent.asked
    assert isinstance(asked.message, Load)
    assert [(pin.pattern, pin.unit) for pin in asked.message.pins] == [
        ("/b[12]/*", "npu0"),
        ("a=b", "cpu"),
    ]


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (EdgeAgentError("x"), 1),
        (InputMismatch("x"), 2),
        (UnknownModel("x"), 3),
        (ModelRefused("x"), 4),
        (ModelQuarantined("x"), 5),
        (Busy("x"), 6),
        (DeadlineExceeded("x"), 7),
        (RunFailed("x"), 11),
        (StorageError("x"), 12),
        (ProtocolError("x"), 13),
    ],
)
def test_an_error_of_the_agent_is_shown_and_gives_its_exit_code(
    error: EdgeAgentError, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeAgent(lambda asked: asked.fail(error)) as agent:
        assert main(["unload", "m", "--socket", str(agent.path)]) == exit_code
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "edge-agent unload: x\n")


@pytest.mark.parametrize("command", ["plan", "infer", "unload"])
def test_a_file_where_the_name_of_a_loaded_model_is_wanted_is_told_what_to_do(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my net.onnx"
    file.write_bytes(b"")
    with FakeAgent(lambda asked: asked.fail(UnknownModel("x"))) as agent:
        for name in (str(file), "my net.onnx"):
            assert main([command, name, "--socket", str(agent.path)]) == 3
    said, other = capsys.readouterr().err.splitlines()
    planned = f"; `edge-agent plan '{file}' --devices …` plans for devices, without an agent"
    planned = planned if command == "plan" else ""
    assert said.endswith(f"x; it is a file: `edge-agent load '{file}'` loads it{planned}")
    assert "it is a file" not in other
    assert main([command, str(file), "--socket", str(tmp_path / "none.sock")]) == 8
    assert ("--devices …" in capsys.readouterr().err) is (command == "plan")


def test_without_an_agent_the_exit_code_is_8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "--socket", str(tmp_path / "a.sock")]) == 8
    assert "start one with `edge-agent serve`" in capsys.readouterr().err


def test_a_socket_path_that_is_too_long_is_the_users_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models", "--socket", "/" + "x" * 200]) == 2
    assert "want at most 107" in capsys.readouterr().err


def test_a_config_file_that_does_not_exist_is_the_users_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "--config", str(tmp_path / "none.toml")]) == 2
    assert "none.toml: no such config file" in capsys.readouterr().err


def test_a_path_that_is_no_unicode_is_the_users_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FakeAgent() as agent:
        assert main(["load", "caf\udce9.onnx", "--socket", str(agent.path)]) == 2
        assert agent.asked == []
    assert "valid UTF-8" in capsys.readouterr().err


@pytest.mark.usefixtures("interruptible")
def test_interrupting_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    with FakeAgent(lambda _: signal.pthread_kill(main_thread, signal.SIGINT)) as agent:
        assert main(["models", "--socket", str(agent.path)]) == 130
    assert capsys.readouterr().err == "edge-agent models: interrupted\n"


@pytest.mark.parametrize("count", [0, 1, 300])
def test_output_that_nobody_reads_is_no_traceback(count: int) -> None:
    is_closed = threading.Event()

    def answer(asked: Asked) -> None:
        is_closed.wait(20.0)
        asked.answer(Models(tuple(state(f"m{n}", source="/x" * 500) for n in range(count))))

    with FakeAgent(answer) as agent:
        command = [sys.executable, "-m", "edge_agent.cli", "models", "--socket", str(agent.path)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            is_closed.set()
            shown = process.stderr.read()
            assert (process.wait(20), shown) == (1, "")


def test_an_interruption_before_the_command_began_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("edge_agent.cli.main.main", interrupted)
    assert start.main() == 130
    assert capsys.readouterr() == ("", "edge-agent: interrupted\n")


def test_a_shape_of_an_input_that_does_not_exist_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FakeAgent() as agent:
        arguments = ["infer", "m", "--random", "--shape", "foo=1x2", "--socket", str(agent.path)]
        assert main(arguments) == 2
    assert "--shape foo: no such input, want one of x" in capsys.readouterr().err


def test_inputs_larger_than_the_memory_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeAgent() as agent:
        size = 1 << 45
        arguments = ["infer", "m", "--random", "--shape", f"x={size}", "--socket", str(agent.path)]
        assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("edge-agent infer: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["models"], ["models", "--json"], ["split", "M", "--list"]])
def test_an_output_that_takes_nothing_is_told(arguments: list[str], tmp_path: Path) -> None:
    convolving(tmp_path / "m.onnx")
    with FakeAgent(lambda asked: asked.answer(Models((state(),)))) as agent:
        words = [str(tmp_path / "m.onnx") if word == "M" else word for word in arguments]
        command = [sys.executable, "-m", "edge_agent.cli", *words, "--socket", str(agent.path)]
        with Path("/dev/full").open("w") as full:
            ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
        told = f"edge-agent {arguments[0]}: standard output: No space left on device\n"
        assert (ended.returncode, ended.stderr.decode()) == (12, told)


IMPATIENT = """
import sys
from edge_agent.cli import output, start
output.PatientProgress.__init__.__defaults__ = (0.0,)
sys.exit(start.main())
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("plan m.onnx --devices raspberry-pi-5-8gb --target latency", 0),
        # What is wrong has its exit code all the same.
        ("plan m.onnx --devices nowhere", 2),
    ],
)
def test_what_cannot_be_told_on_standard_error_stops_nothing(
    words: str, expected: int, tmp_path: Path
) -> None:
    convolving(tmp_path / "m.onnx")

    def ended(where: int | IO[str]) -> tuple[int, bytes, bytes | None]:
        command = [sys.executable, "-c", IMPATIENT, *words.split()]
        done = subprocess.run(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=where, check=False
        )
        return done.returncode, done.stdout, done.stderr

    code, shown, said = ended(subprocess.PIPE)
    assert (code, bool(said)) == (expected, True)
    with Path("/dev/full").open("w") as full:
        assert ended(full) == (code, shown, None)


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_closed_streams_are_no_traceback(closed: int, tmp_path: Path) -> None:
    convolving(tmp_path / "m.onnx")
    script = f"{sys.executable} -m edge_agent.cli split m.onnx --at 2 {closed}>&-"
    ended = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("" if closed == 1 else "part ")
    assert sorted(p.name for p in (tmp_path / "m-parts").iterdir()) == [
        *("manifest.json", "part-1.onnx", "part-1.onnx.weights"),
        *("part-2.onnx", "part-2.onnx.weights"),
    ]


def test_each_command_is_the_same_whether_the_others_are_there_or_not() -> None:
    choices = _commands(parser())
    assert choices.keys() == PART_OF.keys()
    for name, whole in choices.items():
        assert _commands(parser(name))[name].format_help() == whole.format_help()


def _commands(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = (a for a in of._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)
