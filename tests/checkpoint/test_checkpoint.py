"""What is saved comes back, bit for bit, and only whole checkpoints count."""

import errno
import logging
import os
import re
from pathlib import Path

import pytest
import torch
from tests.checkpoint.checkpoint_helpers import same, same_bits

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.checkpoint import SaveError, prune_steps, read_newest_checkpoint, save_checkpoint
from polyhead.checkpoint.optimizer_state_io import unflatten_optimizer
from polyhead.core.errors import UserError

GOLDEN = Path(__file__).parent / "golden"


def small(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"w": torch.full((3, 4), value), "b": torch.tensor(value)}}


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    tensors = {"model": {"w": torch.randn(5, 7), "nan": torch.tensor([float("nan"), -0.0])}, "empty": {}}
    state = {"step": 12, "best": float("inf"), "score": 0.1 + 0.2, "name": "Ünï", "list": [1, [None, True]]}
    path = save_checkpoint(tmp_path / "new" / "run", 12, tensors, state, extra={"tokenizer": "abc"})
    found = checkpoint.read_checkpoint(path)
    assert path == tmp_path / "new" / "run" / "step-12"
    assert (path.parent / "latest").read_text() == "step-12\n"
    assert found.step == 12
    assert found.extra == {"tokenizer": "abc"}
    assert same(found.tensors, tensors)
    assert found.state == state


@pytest.mark.acceptance("B6")
def test_saved_values_are_those_at_the_call(tmp_path):
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for step in range(20):
        snapshot = {name: value.clone() for name, value in model.state_dict().items()}
        path = save_checkpoint(tmp_path, step, {"model": model.state_dict()}, {})
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
        assert same(checkpoint.read_checkpoint(path).tensors["model"], snapshot)


@pytest.mark.acceptance("B4")
def test_a_step_that_is_saved_again_is_replaced_as_a_whole(tmp_path):
    save_checkpoint(tmp_path, 5, small(1.0) | {"ema": {"w": torch.ones(2)}}, {"a": 1})
    save_checkpoint(tmp_path, 5, small(2.0), {"b": 2})
    found = read_newest_checkpoint(tmp_path)
    assert same(found.tensors["model"]["w"], torch.full((3, 4), 2.0))
    assert found.tensors.keys() == {"model"}
    assert found.state == {"b": 2}
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-5"]


@pytest.mark.parametrize("kind", ["file", "link", "broken link"])
def test_whatever_bears_the_name_of_the_step_is_replaced(tmp_path, kind):
    name, other = tmp_path / "step-5", tmp_path / "other"
    if kind == "file":
        name.write_text("?")
    else:
        if kind == "link":
            other.mkdir()
            (other / "keep").write_text("me")
        name.symlink_to(other)
    save_checkpoint(tmp_path, 5, small(2.0), {})
    assert read_newest_checkpoint(tmp_path).step == 5
    assert kind != "link" or (other / "keep").exists()


def test_values_that_json_would_change_are_not_saved(tmp_path):
    for state in ({"a": {1: 2}}, {"a": (1, 2)}, {"a": torch.ones(1)}, {"a": [{"b": {1, 2}}]}):
        with pytest.raises(AssertionError, match="state"):
            save_checkpoint(tmp_path, 1, {}, state)
    with pytest.raises(UserError, match=r"cannot save 'x'.*sparse"):
        save_checkpoint(tmp_path, 1, {"model": {"x": torch.eye(2).to_sparse()}}, {})
    with pytest.raises(UserError, match="on meta"):
        save_checkpoint(tmp_path, 1, {"model": {"x": torch.empty(2, device="meta")}}, {})
    assert os.listdir(tmp_path) == []


@pytest.mark.acceptance("B7")
def test_the_newest_is_the_highest_number_and_not_the_last_name(tmp_path):
    for step in (9900, 10000, 800):
        save_checkpoint(tmp_path, step, small(step), {})
    assert checkpoint.list_steps(tmp_path) == [800, 9900, 10000]
    assert read_newest_checkpoint(tmp_path).step == 10000
    prune_steps(tmp_path, 2)
    # `latest` names 800, which this run has just saved: it is no leftover
    assert checkpoint.list_steps(tmp_path) == [800, 9900, 10000]
    save_checkpoint(tmp_path, 10100, small(1), {})
    prune_steps(tmp_path, 2)
    assert checkpoint.list_steps(tmp_path) == [10000, 10100]


def test_an_empty_or_missing_directory_has_no_newest(tmp_path):
    assert read_newest_checkpoint(tmp_path) is None
    assert read_newest_checkpoint(tmp_path / "none") is None
    assert checkpoint.list_steps(tmp_path / "none") == []
    prune_steps(tmp_path / "none", 1)


@pytest.mark.acceptance("B7")
def test_pruning_keeps_the_last_that_verifies_and_the_best(tmp_path, caplog):
    for step in range(1, 7):
        save_checkpoint(tmp_path, step, small(step), {})
    for step in (4, 5, 6):
        (tmp_path / f"step-{step}" / "model.safetensors").write_bytes(b"")
    prune_steps(tmp_path, 2, best_steps={1})
    assert checkpoint.list_steps(tmp_path) == [1, 3, 5, 6]
    assert read_newest_checkpoint(tmp_path).step == 3
    assert "step-6 is damaged" in caplog.text


def test_pruning_leaves_what_is_not_ours(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, small(step), {})
    foreign = ["step-0002", "step-1x", "step--4", "step-4.bak", "notes.txt", "step-", "xstep-1", "step-+1"]
    for name in foreign:
        (tmp_path / name).mkdir()
    (tmp_path / "step-0").symlink_to(tmp_path / "step-0002")
    prune_steps(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == sorted([*foreign, "step-0", "step-3", "latest"])
    with pytest.raises(UserError, match="keep"):
        prune_steps(tmp_path, 0)


@pytest.fixture
def undeletable(monkeypatch):
    """Every state.json cannot be deleted, as a file that another machine has open on NFS."""
    unlink = os.unlink

    def refuse(path, *args, **kwargs):
        if os.path.basename(path) == "state.json":
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(os, "unlink", refuse)


def leftovers(root: Path) -> list[str]:
    return sorted(name for name in os.listdir(root) if ".tmp-" in name or ".old-" in name)


def test_a_checkpoint_that_cannot_be_deleted_stops_neither_a_run_nor_its_resumption(
    tmp_path, caplog, undeletable
):
    warning = "could not delete the old checkpoint {}: Device or resource busy"
    for step in range(1, 5):
        prune_steps(tmp_path, 1)
        save_checkpoint(tmp_path, step, small(step), {})
    assert checkpoint.list_steps(tmp_path) == [3, 4]
    assert len(leftovers(tmp_path)) == 2
    # all that can be deleted is: the weights take the space
    assert all(os.listdir(tmp_path / name) == ["state.json"] for name in leftovers(tmp_path))
    caplog.clear()
    found = read_newest_checkpoint(tmp_path)
    assert (found.step, found.tensors["model"]["b"]) == (4, 4.0)
    assert sorted(caplog.messages) == [warning.format(tmp_path / name) for name in leftovers(tmp_path)]


def test_a_step_is_written_and_replaced_beside_its_own_leftovers_that_cannot_be_deleted(
    tmp_path, caplog, undeletable
):
    for value in range(4):
        save_checkpoint(tmp_path, 1, small(value), {})
    found = read_newest_checkpoint(tmp_path)
    assert (found.step, found.tensors["model"]["b"]) == (1, 3.0)
    assert len(leftovers(tmp_path)) == 3
    checkpoint.delete_step(tmp_path, 1)
    assert checkpoint.list_steps(tmp_path) == []
    save_checkpoint(tmp_path, 1, small(7), {})
    assert read_newest_checkpoint(tmp_path).tensors["model"]["b"] == 7.0


def test_a_checkpoint_that_cannot_be_renamed_is_named_in_a_warning(tmp_path, caplog, monkeypatch):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, small(step), {})

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    prune_steps(tmp_path, 1)
    assert caplog.messages == [
        f"could not delete the old checkpoint {tmp_path / 'step-1'}: Permission denied"
    ]
    with pytest.raises(PermissionError):
        checkpoint.delete_step(tmp_path, 1)
    assert checkpoint.list_steps(tmp_path) == [1, 2]


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path):
    save_checkpoint(tmp_path, 1, small(1), {})
    living = [f"step-3.tmp-1-{checkpoint.process_start_time(1)}"]
    own = [f"step-2.tmp-{os.getpid()}", f"step-9.tmp-{os.getpid()}-1"]  # it is at no other work
    dead = [*own, "step-2.tmp-4194303", "step-9.old-4194303"]
    for name in [*living, *dead]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("x")
    (tmp_path / "step-9").mkdir()
    assert read_newest_checkpoint(tmp_path).step == 1
    assert sorted(os.listdir(tmp_path)) == sorted(["latest", "step-1", "step-9", *living])


def test_an_unfinished_directory_is_never_adopted_however_whole_it_is(tmp_path):
    path = save_checkpoint(tmp_path, 1, small(1), {})
    save_checkpoint(tmp_path, 2, small(2), {}).rename(tmp_path / f"step-2.tmp-{os.getpid()}")
    assert read_newest_checkpoint(tmp_path).path == path


def test_a_state_too_large_to_be_loaded_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_STATE_BYTES", 100)
    with pytest.raises(SaveError, match="state takes 210 bytes; at most 100"):
        save_checkpoint(tmp_path, 1, {}, {"long": "x" * 198})


@pytest.mark.acceptance("B14")
@pytest.mark.parametrize("version", sorted(os.listdir(GOLDEN)))
def test_checkpoints_of_every_format_version_load(version, caplog):
    with caplog.at_level(logging.WARNING):
        found = checkpoint.read_checkpoint(GOLDEN / version / "step-7")
    assert caplog.text == ""
    assert found.step == 7
    assert found.extra == {"tokenizer": "0" * 64}
    assert found.state["best"] == float("inf")
    assert found.state["epoch"] == 1.5
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4
    assert same_bits(found.tensors["model"]["weight"], weight)
    assert same_bits(found.tensors["model"]["tied"], weight)
    assert same_bits(found.tensors["ema"]["weight"], weight.bfloat16())
    state = unflatten_optimizer(found.tensors["optimizer"], found.state["optimizer"])
    assert same_bits(state["state"][0]["step"], torch.tensor(7.0))
    assert state["param_groups"][0]["betas"] == (0.9, 0.98)


@pytest.mark.acceptance("F1")
def test_no_part_of_training_unpickles():
    package = Path(checkpoint.__file__).parents[1]
    sources = [*package.glob("checkpoint/*.py"), *package.rglob("train/**/*.py")]
    forbidden = re.compile(
        r"\bpickle\b|torch\.load\b|torch\.save\b|\bmarshal\b|\bshelve\b|(?<!\.)\beval\(|\bexec\("
    )
    found = [path.name for path in sources if forbidden.search(path.read_text())]
    assert found == []
