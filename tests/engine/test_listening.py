from __future__ import annotations

import os
import sys

import pytest

from edge_agent.engine.listening import listening


def test_what_is_printed_is_heard_and_not_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    print("before")
    with listening() as heard:
        os.write(1, b"from a library\n")
        os.write(2, b"an error\n")
    print("after", file=sys.stderr)
    assert heard.text == "from a library\nan error\n"
    assert capfd.readouterr() == ("before\n", "after\n")


def test_both_streams_are_restored_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        os.write(2, b"lost\n")
        raise KeyError

    with pytest.raises(KeyError), listening():
        fails()
    os.write(2, b"shown\n")
    assert capfd.readouterr() == ("", "shown\n")


def test_no_descriptor_is_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    with listening():
        pass
    assert len(os.listdir("/proc/self/fd")) == len(before)
