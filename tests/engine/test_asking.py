from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from edge_agent.engine.asking import hear


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_lines_of_json_are_heard_among_others() -> None:
    heard = hear(
        python("""print('hello\\n{"a": 1}\\n[2]\\n{"b": 2}\\n{"cut off')"""), lambda _lines: 20
    )
    assert (heard.lines, heard.code, heard.last_error) == (({"a": 1}, {"b": 2}), 0, "")


def test_the_last_line_of_an_error_is_kept() -> None:
    heard = hear(python("import sys; sys.exit('x' * 9000 + '\\nthe reason')"), lambda _lines: 20)
    assert (heard.code, heard.last_error) == (1, "the reason")


@pytest.mark.long
def test_a_child_that_says_something_in_time_may_take_longer() -> None:
    script = "import time\nfor i in range(6): print('{}', flush=True); time.sleep(0.5)"
    heard = hear(python(script), lambda _lines: 2.0)
    assert (len(heard.lines), heard.code) == (6, 0)


def test_a_child_that_only_chatters_is_ended() -> None:
    for stream in ("stdout", "stderr"):
        heard = hear(
            python(f"import sys\nwhile True: sys.{stream}.write('waiting ')"), lambda _lines: 1.0
        )
        assert (heard.lines, heard.code) == ((), None)


def test_a_child_that_closes_its_outputs_and_hangs_is_ended() -> None:
    script = "import os, time; print('{}', flush=True); os.close(1); os.close(2); time.sleep(600)"
    heard = hear(python(script), lambda _lines: 1.0)
    assert (heard.lines, heard.code) == (({},), None)


def test_a_crash_gives_the_number_of_its_signal() -> None:
    heard = hear(
        python(f"print({json.dumps({'a': 1})!r}, flush=True); import os; os.abort()"),
        lambda _lines: 20,
    )
    assert (heard.lines, heard.code) == (({"a": 1},), -6)


def test_the_limit_follows_from_what_was_heard() -> None:
    script = "import time; print('{}', flush=True); time.sleep(600)"
    heard = hear(python(script), lambda lines: 0.2 if lines else 20)
    assert (heard.lines, heard.code) == (({},), None)


@pytest.mark.parametrize("ends", ["time.sleep(600)", "os.abort()", "os.kill(os.getpid(), 9)"])
def test_what_a_child_wrote_to_temporary_files_goes_however_it_ends(ends: str) -> None:
    script = (
        "import json, os, tempfile, time\n"
        "print(json.dumps({'made': tempfile.mkdtemp()}), flush=True)\n" + ends
    )
    heard = hear(python(script), lambda lines: 0.2 if lines else 20)
    (line,) = heard.lines
    assert heard.code != 0
    assert not Path(line["made"]).exists()
    assert not Path(line["made"]).parent.exists()
