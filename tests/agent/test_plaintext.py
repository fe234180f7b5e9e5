"""Where tensors may cross unencrypted: nowhere that others could listen."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.agent import plaintext
from edge_agent.agent.plaintext import check_plaintext, in_own_namespace
from edge_agent.errors import UsageError


@pytest.mark.parametrize("is_own", [True, False])
def test_loopback_is_fine_everywhere(monkeypatch: pytest.MonkeyPatch, is_own: bool) -> None:
    monkeypatch.setattr(plaintext, "in_own_namespace", lambda: is_own)
    check_plaintext(["127.0.0.1", "127.8.9.1", "::1"])
    check_plaintext([])


@pytest.mark.parametrize("host", ["10.0.0.1", "192.168.1.7", "fe80::1", "0.0.0.0", "pi.local"])
def test_other_addresses_are_fine_in_a_network_namespace_alone(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(plaintext, "in_own_namespace", lambda: False)
    with pytest.raises(UsageError) as told:
        check_plaintext(["127.0.0.1", host])
    assert str(told.value) == (
        f"tensors are to cross unencrypted over {host}, want loopback or a network namespace: "
        "remove plaintext_streams in [peering] of the settings"
    )
    monkeypatch.setattr(plaintext, "in_own_namespace", lambda: True)
    check_plaintext(["127.0.0.1", host])


def test_a_namespace_is_another_one_than_that_of_the_first_process(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "ns").mkdir(parents=True)
        (tmp_path / name / "ns" / "net").write_text(name)
    one, two = tmp_path / "one", tmp_path / "two"
    assert in_own_namespace(one, two)
    assert not in_own_namespace(one, one)
    # What nobody can look at may be the same.
    assert not in_own_namespace(one, tmp_path / "gone")
