"""What is saved comes back, bit for bit, and only whole checkpoints count."""

import json
import logging
import os
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.checkpoint import SaveError, prune_steps, read_newest_checkpoint, save_checkpoint
from polyhead.checkpoint.optimizer_state_io import flatten_optimizer, unflatten_optimizer
from polyhead.checkpoint.safetensors_io import (
    SAFETENSORS_DTYPES,
    check_tensors,
    count_file_bytes,
    make_header,
)
from polyhead.core.errors import UserError

GOLDEN = Path(__file__).parent / "golden"


def small(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"w": torch.full((3, 4), value), "b": torch.tensor(value)}}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and same_bits(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


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


@pytest.mark.parametrize("dtype", SAFETENSORS_DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit_and_other_programs_can_read_it(tmp_path, dtype):
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (6 * dtype.itemsize,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(2, 3)
    tensors = {
        "matrix": tensor,
        "scalar": tensor[0, 0],
        "turned": tensor.T,
        "part": tensor[:, 1:],
        "no": tensor[:0],
        "every second": raw.view(dtype)[::2],
    }
    path = save_checkpoint(tmp_path, 1, {"all": tensors}, {})
    assert same(checkpoint.read_checkpoint(path).tensors["all"], tensors)
    file = path / "all.safetensors"
    assert file.stat().st_size == count_file_bytes(tensors)
    assert same_bits(safetensors.torch.load_file(file)["turned"], tensor.T)


def test_tied_tensors_are_written_once_and_come_back_tied(tmp_path):
    table = torch.randn(100, 8)
    tensors = {"embedding": table, "output": table.detach(), "half": table[:50], "other": table.clone()}
    path = save_checkpoint(tmp_path, 1, {"model": tensors}, {})
    found = checkpoint.read_checkpoint(path).tensors["model"]
    assert (path / "model.safetensors").stat().st_size == len(make_header(tensors)[0]) + 4 * 8 * (
        100 + 50 + 100
    )
    assert found.keys() == tensors.keys()
    assert all(same_bits(found[name], tensors[name]) for name in tensors)
    assert found["embedding"].data_ptr() == found["output"].data_ptr()


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_optimizer_goes_on_as_if_it_had_never_been_saved(tmp_path, make, dtype):
    def build():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).to(dtype)
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters()}]
        options = {"fused": True} if make is not torch.optim.SGD else {"momentum": 0.9}
        return model, make(groups, lr=1e-2, **options)

    def step(model, optimizer, seed):
        optimizer.zero_grad()
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)
        model(x).square().sum().backward()
        optimizer.step()

    model, optimizer = build()
    step(model, optimizer, 1)
    tensors, layout = flatten_optimizer(optimizer.state_dict())
    path = save_checkpoint(
        tmp_path, 1, {"model": model.state_dict(), "optimizer": tensors}, {"optimizer": layout}
    )

    found = checkpoint.read_checkpoint(path)
    other, other_optimizer = build()
    other.load_state_dict(found.tensors["model"])
    state = unflatten_optimizer(found.tensors["optimizer"], found.state["optimizer"])
    assert same(state, optimizer.state_dict())
    other_optimizer.load_state_dict(state)
    for seed in (2, 3):
        step(model, optimizer, seed)
        step(other, other_optimizer, seed)
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert same(other_optimizer.state_dict(), optimizer.state_dict())


def test_nested_state_of_an_optimizer_is_taken_apart_and_put_together():
    shared = torch.ones(2)
    state = {
        "state": {0: {"a": shared, "b": (1, 2.5, [shared[:1], None])}},
        "flag": True, "nan": float("nan"), "tuple": (), "list": [],
    }  # fmt: skip
    tensors, layout = flatten_optimizer(state)
    assert same(unflatten_optimizer(tensors, json.loads(json.dumps(layout))), state)
    with pytest.raises(UserError, match="'x/y' of the optimizer: a object"):
        flatten_optimizer({"x": {"y": object()}})
    with pytest.raises(UserError, match="'state/0/a' is missing"):
        unflatten_optimizer({}, layout)
    for forged in ({"tuple": 3}, {"dict": [1]}, {"a": 1}, {}):
        with pytest.raises(UserError, match="layout"):
            unflatten_optimizer({}, forged)


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


def test_what_cannot_be_deleted_does_not_stop_a_run(tmp_path, caplog, monkeypatch):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, small(step), {})

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoint, "remove", refuse)
    prune_steps(tmp_path, 1)
    assert "could not delete the old checkpoint" in caplog.text


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


def test_tensors_that_do_not_fit_are_named():
    want = {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}
    check_tensors(want, want, "x")
    found = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(4), "d": torch.zeros(1)}
    with pytest.raises(UserError) as error:
        check_tensors(found, want, "step-3")
    assert str(error.value) == (
        "step-3 does not fit: 'c' is missing; 'd' is not wanted; "
        "'a' is torch.float64 [2], wanted torch.float32 [2]; "
        "'b' is torch.float32 [4], wanted torch.float32 [3]"
    )


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
