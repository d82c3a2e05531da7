import errno
import logging
import os
from pathlib import Path

import pytest
import torch
from tests.checkpoint.checkpoint_helpers import has_same_bits, is_identical, list_leftovers

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.checkpoint import (
    SaveError,
    list_steps,
    prune_steps,
    read_checkpoint,
    read_newest_checkpoint,
    save_checkpoint,
)
from polyhead.checkpoint.optimizer_state_io import unflatten_optimizer
from polyhead.core.errors import UserError

GOLDEN = Path(__file__).parent / "golden"


def make_tensors(value):
    return {"model": {"w": torch.full((3, 4), value), "b": torch.tensor(value)}}


def save_steps(root, *steps):
    for step in steps:
        save_checkpoint(root, step, make_tensors(step), {})


@pytest.mark.acceptance("B6")
def test_values_are_those_at_the_call(memory_dir):
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for step in range(10):
        snapshot = {name: value.clone() for name, value in model.state_dict().items()}
        path = save_checkpoint(memory_dir, step, {"model": model.state_dict()}, {})
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
        assert is_identical(read_checkpoint(path).tensors["model"], snapshot)


@pytest.mark.acceptance("B4")
def test_saving_a_step_again_replaces_it(tmp_path):
    save_checkpoint(tmp_path, 5, make_tensors(1.0) | {"ema": {"w": torch.ones(2)}}, {"a": 1})
    save_checkpoint(tmp_path, 5, make_tensors(2.0), {"b": 2})
    result = read_newest_checkpoint(tmp_path)
    assert is_identical(result.tensors, make_tensors(2.0)) and result.state == {"b": 2}
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-5"]


def test_failed_replacement_restores_the_checkpoint(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 5, make_tensors(1.0), {"a": 1})
    rename = os.rename

    def refuse_new(source, target):
        if ".tmp-" in str(source):
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse_new)
    with pytest.raises(SaveError, match="Input/output error"):
        save_checkpoint(tmp_path, 5, make_tensors(2.0), {"a": 2})
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-5"]
    assert read_checkpoint(tmp_path / "step-5").state == {"a": 1}


@pytest.mark.parametrize("kind", ["file", "link", "broken link"])
def test_other_entry_named_like_the_step_is_replaced(tmp_path, kind):
    path, target = tmp_path / "step-5", tmp_path / "other"
    path.write_text("?") if kind == "file" else path.symlink_to(target)
    if kind == "link":
        target.mkdir()
        (target / "file").write_text("x")
    save_steps(tmp_path, 5)
    assert read_newest_checkpoint(tmp_path).step == 5 and (target / "file").exists() == (kind == "link")


def test_unsupported_values_are_not_saved(tmp_path, monkeypatch):
    for state in ({"a": {1: 2}}, {"a": (1, 2)}, {"a": torch.ones(1)}, {"a": [{"b": {1, 2}}]}):
        with pytest.raises(AssertionError, match="state"):
            save_checkpoint(tmp_path, 1, {}, state)
    for tensor, message in (
        (torch.eye(2).to_sparse(), r"cannot save 'x'.*sparse"),
        (torch.empty(2, device="meta"), "on meta"),
    ):
        with pytest.raises(UserError, match=message):
            save_checkpoint(tmp_path, 1, {"model": {"x": tensor}}, {})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "MAX_STATE_BYTES", 100)
        with pytest.raises(SaveError, match="state takes 210 bytes; at most 100"):
            save_checkpoint(tmp_path, 1, {}, {"long": "x" * 198})
    assert os.listdir(tmp_path) == []


@pytest.mark.acceptance("B7")
def test_newest_is_the_highest_number(tmp_path):
    save_steps(tmp_path, 9900, 10000, 800)
    assert list_steps(tmp_path) == [800, 9900, 10000] and read_newest_checkpoint(tmp_path).step == 10000
    prune_steps(tmp_path, 2)
    # `latest` names 800, which this run has just saved: it is no leftover
    assert list_steps(tmp_path) == [800, 9900, 10000]
    save_steps(tmp_path, 10100)
    prune_steps(tmp_path, 2)
    assert list_steps(tmp_path) == [10000, 10100]


def test_checkpoint_comes_back_bit_for_bit(tmp_path):
    assert read_newest_checkpoint(tmp_path) is read_newest_checkpoint(tmp_path / "none") is None
    assert list_steps(tmp_path / "none") == []
    prune_steps(tmp_path / "none", 1)
    tensors = {"model": {"w": torch.randn(5, 7), "nan": torch.tensor([float("nan"), -0.0])}, "empty": {}}
    state = {"step": 12, "best": float("inf"), "score": 0.1 + 0.2, "name": "Ünï", "list": [1, [None, True]]}
    path = save_checkpoint(tmp_path / "new" / "run", 12, tensors, state, extra={"tokenizer": "abc"})
    assert path == tmp_path / "new" / "run" / "step-12"
    assert (path.parent / "latest").read_text() == "step-12\n"
    result = read_checkpoint(path)
    assert (result.step, result.extra, result.state) == (12, {"tokenizer": "abc"}, state)
    assert is_identical(result.tensors, tensors)


@pytest.mark.acceptance("B7")
def test_pruning_keeps_the_last_valid_and_the_best(tmp_path, caplog):
    save_steps(tmp_path, *range(1, 7))
    for step in (4, 5, 6):
        (tmp_path / f"step-{step}" / "model.safetensors").write_bytes(b"")
    prune_steps(tmp_path, 2, best_steps={1})
    assert list_steps(tmp_path) == [1, 3, 5, 6]
    assert read_newest_checkpoint(tmp_path).step == 3 and "step-6 is damaged" in caplog.text


def test_pruning_leaves_foreign_entries(tmp_path):
    save_steps(tmp_path, 1, 2, 3)
    foreign = ["step-0002", "step-1x", "step--4", "step-4.bak", "notes.txt", "step-", "xstep-1", "step-+1"]
    for name in foreign:
        (tmp_path / name).mkdir()
    (tmp_path / "step-0").symlink_to(tmp_path / "step-0002")
    prune_steps(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == sorted([*foreign, "step-0", "step-3", "latest"])
    with pytest.raises(UserError, match="keep"):
        prune_steps(tmp_path, 0)


@pytest.fixture
def undeletable_state(monkeypatch):
    """No state.json can be deleted, as a file that another machine has open on NFS."""
    unlink = os.unlink

    def refuse(path, *args, **kwargs):
        if os.path.basename(path) == "state.json":
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(os, "unlink", refuse)


def test_undeletable_checkpoint_stops_neither_run_nor_resumption(tmp_path, caplog, undeletable_state):
    for step in range(1, 5):
        prune_steps(tmp_path, 1)
        save_steps(tmp_path, step)
    assert list_steps(tmp_path) == [3, 4] and len(list_leftovers(tmp_path)) == 2
    # all files that can be deleted are: the weights take the space
    assert all(os.listdir(tmp_path / name) == ["state.json"] for name in list_leftovers(tmp_path))
    caplog.clear()
    result = read_newest_checkpoint(tmp_path)
    assert (result.step, result.tensors["model"]["b"]) == (4, 4.0)
    again = tmp_path / "again"  # a step that is saved again
    for value in range(4):
        save_checkpoint(again, 1, make_tensors(value), {})
    assert read_newest_checkpoint(again).tensors["model"]["b"] == 3.0 and len(list_leftovers(again)) == 3
    checkpoint.delete_step(again, 1)
    assert list_steps(again) == []
    caplog.clear()
    read_newest_checkpoint(tmp_path)
    warning = "could not delete the old checkpoint {}: Device or resource busy"
    assert sorted(caplog.messages) == [warning.format(tmp_path / name) for name in list_leftovers(tmp_path)]


def test_failed_rename_of_old_checkpoint_is_a_warning(tmp_path, caplog, monkeypatch):
    save_steps(tmp_path, 1, 2)

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    prune_steps(tmp_path, 1)
    path = tmp_path / "step-1"
    assert caplog.messages == [f"could not delete the old checkpoint {path}: Permission denied"]
    with pytest.raises(PermissionError):
        checkpoint.delete_step(tmp_path, 1)
    assert list_steps(tmp_path) == [1, 2]


def test_leftovers_of_dead_processes_are_deleted(tmp_path):
    save_steps(tmp_path, 1)
    live = [f"step-3.tmp-1-{checkpoint.process_start_time(1)}"]
    dead = ["step-2.tmp-4194303", "step-9.old-4194303"]
    dead += [f"step-2.tmp-{os.getpid()}", f"step-9.tmp-{os.getpid()}-1"]  # of this idle process
    for name in [*live, *dead]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("x")
    (tmp_path / "step-9").mkdir()
    # a complete directory with the name of an unfinished one is never read
    save_checkpoint(tmp_path, 7, make_tensors(7), {}).rename(tmp_path / f"step-7.tmp-{os.getpid()}")
    (tmp_path / "latest").write_text("step-1\n")
    assert read_newest_checkpoint(tmp_path).step == 1
    assert sorted(os.listdir(tmp_path)) == sorted(["latest", "step-1", "step-9", *live])


@pytest.mark.acceptance("B14")
@pytest.mark.parametrize("version", sorted(os.listdir(GOLDEN)))
def test_checkpoints_of_every_format_version_load(version, caplog):
    with caplog.at_level(logging.WARNING):
        result = read_checkpoint(GOLDEN / version / "step-7")
    assert caplog.text == "" and (result.step, result.extra) == (7, {"tokenizer": "0" * 64})
    assert (result.state["best"], result.state["epoch"]) == (float("inf"), 1.5)
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4
    assert has_same_bits(result.tensors["model"]["weight"], weight)
    assert has_same_bits(result.tensors["model"]["tied"], weight)
    assert has_same_bits(result.tensors["ema"]["weight"], weight.bfloat16())
    optimizer = unflatten_optimizer(result.tensors["optimizer"], result.state["optimizer"])
    assert has_same_bits(optimizer["state"][0]["step"], torch.tensor(7.0))
    assert optimizer["param_groups"][0]["betas"] == (0.9, 0.98)
