from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.errors import UsageError
from edge_agent.store.records import PlanStore, ProfileKey, ProfileStore
from edge_agent.tensors import TensorName

X, Y = TensorName("x"), TensorName("y")
KEY = ProfileKey(
    content="a" * 64, shapes=((X, (1, 3)), (Y, ())), device_key="cpu|onnxruntime|1.32.0"
)


def only_file(folder: Path) -> Path:
    (path,) = (p for p in folder.rglob("*") if p.is_file())
    return path


def test_the_last_plan_of_a_name_is_loaded(tmp_path: Path) -> None:
    plans = PlanStore(tmp_path)
    assert plans.load_plan("m") is None
    plans.save_plan("m", b"{}")
    plans.save_plan("m", b'{"a":1}')
    assert PlanStore(tmp_path).load_plan("m") == b'{"a":1}'
    plans.remove_plan("m")
    assert plans.load_plan("m") is None


def test_a_damaged_plan_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plans = PlanStore(tmp_path)
    plans.save_plan("m", b"{}")
    (tmp_path / "plans" / "m.json").write_bytes(b"damaged")
    assert plans.load_plan("m") is None
    assert (tmp_path / "plans" / "m.json.damaged-1").read_bytes() == b"damaged"
    assert "the model will be planned again" in caplog.text


def test_a_plan_under_a_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        PlanStore(tmp_path).save_plan("../m", b"{}")


def test_a_profile_is_found_under_its_whole_key_only(tmp_path: Path) -> None:
    profiles = ProfileStore(tmp_path)
    profiles.put(KEY, b"{}")
    assert ProfileStore(tmp_path).get(KEY) == b"{}"
    for other in (
        replace(KEY, content="b" * 64),
        replace(KEY, shapes=((X, (2, 3)), (Y, ()))),
        replace(KEY, shapes=()),
        replace(KEY, device_key="cpu|onnxruntime|1.31.0"),
    ):
        assert profiles.get(other) is None


def test_the_order_of_the_inputs_does_not_matter(tmp_path: Path) -> None:
    profiles = ProfileStore(tmp_path)
    profiles.put(KEY, b"{}")
    assert profiles.get(replace(KEY, shapes=KEY.shapes[::-1])) == b"{}"


def test_a_damaged_profile_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profiles = ProfileStore(tmp_path)
    profiles.put(KEY, b"{}")
    path = only_file(tmp_path / "profiles")
    path.write_bytes(path.read_bytes() + b"x")
    assert profiles.get(KEY) is None
    assert only_file(tmp_path / "profiles").name == f"{path.name}.damaged-1"
    assert "the model will be measured again" in caplog.text


def test_sweeps_remove_half_written_files(tmp_path: Path) -> None:
    plans, profiles = PlanStore(tmp_path), ProfileStore(tmp_path)
    profiles.put(KEY, b"{}")
    (tmp_path / "plans" / ".new-abc").write_bytes(b"half")
    (only_file(tmp_path / "profiles").parent / ".new-abc").write_bytes(b"half")
    assert len(plans.sweep()) == 1
    assert len(profiles.sweep()) == 1
    assert profiles.get(KEY) == b"{}"


def test_all_that_is_kept_of_profiles_can_be_gone_through(tmp_path: Path) -> None:
    profiles = ProfileStore(tmp_path)
    assert list(profiles.contents()) == []
    profiles.put(KEY, b"{}")
    profiles.put(replace(KEY, device_key="another"), b"[1]")
    assert sorted(profiles.contents()) == [b"[1]", b"{}"]
    damaged = next((tmp_path / "profiles").glob("*/*.json"))
    damaged.write_bytes(b"cut short")
    assert len(list(profiles.contents())) == 1
