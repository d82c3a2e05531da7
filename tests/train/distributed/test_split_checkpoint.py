"""Checkpoints of a training whose tensors are split: the files of one process, or parts of every rank."""

from __future__ import annotations

import ctypes
import errno
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from tests.train.conftest import Notes
from tests.train.distributed.rank_runs import assert_same, recipe_of, trained
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.split_runs import EXTRA, content, learn, made, restored, save
from tests.train.several import together
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.fsdp import fully_shard

from polyhead.checkpoint.checkpoint import (
    open_lazy_checkpoint,
    read_checkpoint,
)
from polyhead.checkpoint.safetensors_io import describe_tensors
from polyhead.config.recipe import TrainConfig
from polyhead.core.atomic_io import HashingWriter
from polyhead.core.errors import UserError
from polyhead.nn.state import named_state
from polyhead.run.load import load
from polyhead.run.verify_run import verify_run
from polyhead.train.distributed import split_checkpoint
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.distributed.rank_sync import share_checkpoint
from polyhead.train.distributed.split_checkpoint import _PartsWriter, check_shared_directory, save_split
from polyhead.train.run_training import run_training
from polyhead.train.train_state import SavedState, TrainState

pytestmark = pytest.mark.usefixtures("unsynced")


def loaded_by_torch(path: Path, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that torch.distributed.checkpoint finds in a directory, in one process."""
    tensors = {name: torch.full_like(tensor, -1) for name, tensor in like.items()}
    dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=True)
    return tensors


class EverySecond(Mapping[str, Tensor]):
    """Each of two ranks has every second tensor, as the ranks of a pipeline have their layers."""

    def __init__(self, tensors: Mapping[str, Tensor], rank: int) -> None:
        self.specs, self.rank = describe_tensors(tensors), rank
        self.owners = {name: i % 2 for i, name in enumerate(tensors)}
        self.own_tensors = {name: tensor for name, tensor in tensors.items() if self.owners[name] == rank}

    def __getitem__(self, name: str) -> Tensor:
        dtype, shape = self.specs[name]
        tensor = self.own_tensors[name] if name in self.own_tensors else torch.empty(shape, dtype=dtype)
        if self.owners[name]:
            dist.send(tensor, 0) if self.rank else dist.recv(tensor, 1)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)


class Saved(NamedTuple):
    """What two ranks have saved, and said of their errors; and the state of one process."""

    root: Path
    said: list[list[str]]
    one: TrainState


@pytest.fixture(scope="module")
def saved(unsynced: None, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    root = tmp_path_factory.mktemp("saved")
    one = made(1)
    learn(one, 0, 1)
    save(one, root / "one", SINGLE_PROCESS)

    def work(ranks: ProcessGroup) -> list[str]:
        training = restored(root / "one" / "step-2", ranks)
        save(training, root / "whole", ranks)
        save(training, root / "sharded", ranks, sharded=True)
        for source in ("one", "whole", "sharded"):
            training = restored(root / source / "step-2", ranks)
            learn(training, ranks.rank, 2)
            save(training, root / f"{source}-on", ranks)
        found = read_checkpoint(root / "one" / "step-2")
        stages = {group: EverySecond(tensors, ranks.rank) for group, tensors in found.tensors.items()}
        mixed = {name: torch.ones(3, dtype=getattr(torch, name)) for name in ("bfloat16", "float64", "int8")}
        save_split(root / "mixed", SavedState(2, {"model": mixed}, {}), {}, ranks, is_sharded=False)
        for kind in ("whole", "sharded"):
            saved_state = SavedState(2, stages, found.state)
            save_split(root / f"stages-{kind}", saved_state, EXTRA, ranks, kind == "sharded")
        return save_with_errors(root, ranks)

    ends = together(2, work, timeout=60)
    assert [end.code for end in ends] == [0, 0], ends
    return Saved(root, [end.said for end in ends], one)


def test_two_ranks_save_and_restore_what_one_process_does(saved: Saved) -> None:
    tmp_path, _, one = saved
    files = content(tmp_path / "one" / "step-2")
    assert content(tmp_path / "whole" / "step-2") == files  # to the bit, with manifest and state
    assert content(tmp_path / "stages-whole" / "step-2") == files
    mixed = read_checkpoint(tmp_path / "mixed" / "step-2").tensors["model"]
    assert {name: str(tensor.dtype) for name, tensor in mixed.items()} == {
        name: f"torch.{name}" for name in ("bfloat16", "float64", "int8")
    }
    assert all(tensor.tolist() == [1, 1, 1] for tensor in mixed.values())
    found = read_checkpoint(tmp_path / "stages-sharded" / "step-2")
    for group, tensors in read_checkpoint(tmp_path / "one" / "step-2").tensors.items():
        assert found.tensors[group].keys() == tensors.keys()
        assert all(torch.equal(found.tensors[group][name], tensor) for name, tensor in tensors.items())
    sharded = tmp_path / "sharded" / "step-2"
    assert (sharded / "state.json").read_bytes() == files["state.json"]
    wanted, found = read_checkpoint(tmp_path / "one" / "step-2"), read_checkpoint(sharded)
    assert found._replace(path=wanted.path, tensors={}) == wanted._replace(tensors={})
    for group, tensors in wanted.tensors.items():
        lazy = open_lazy_checkpoint(sharded).tensors[group]
        for read in (found.tensors[group], lazy, loaded_by_torch(sharded / group, dict(tensors))):
            assert read.keys() == tensors.keys()
            assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    learn(one, 0, 1)
    on = content(tmp_path / "one-on" / "step-4")
    assert content(tmp_path / "whole-on" / "step-4") == content(tmp_path / "sharded-on" / "step-4") == on
    for group, tensors in one.export_state().tensors.items():
        for name, tensor in read_checkpoint(tmp_path / "one-on" / "step-4").tensors[group].items():
            torch.testing.assert_close(tensor, tensors[name].detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
@pytest.mark.parametrize(
    ("world", "form"), [(2, "shard"), (3, "shard"), (4, "shard"), (4, "groups"), (4, "tensor")]
)
def test_a_run_goes_on_with_any_split(world: int, form: str, name: str, tmp_path: Path) -> None:
    """From one process to several and back, the curve is that of one."""
    options = [{"name": name} | ({"eps": 1e-3} if name == "adamw" else {}), form]
    one = made(1, *options)
    learn(one, 0, 1)
    save(one, tmp_path / "one", SINGLE_PROCESS)

    def work(ranks: ProcessGroup) -> list[float]:
        training = restored(tmp_path / "one" / "step-2", ranks, *options)
        save(training, tmp_path / "whole", ranks)
        save(training, tmp_path / "sharded", ranks, sharded=True)
        rank, n_data = (ranks.rank // 2, 2) if form == "tensor" else (ranks.rank, world)
        losses = learn(restored(tmp_path / "sharded" / "step-2", ranks, *options), rank, n_data)
        save(training, tmp_path / "on", ranks)
        return losses

    ends = together(world, work, timeout=60)
    assert [end.code for end in ends] == [0] * world, ends
    assert content(tmp_path / "whole" / "step-2") == content(tmp_path / "one" / "step-2")
    assert (tmp_path / "sharded" / "step-2" / "model").is_dir()
    wanted = read_checkpoint(tmp_path / "one" / "step-2").tensors
    found = read_checkpoint(tmp_path / "sharded" / "step-2").tensors
    for group, tensors in wanted.items():
        assert all(torch.equal(found[group][name], tensor) for name, tensor in tensors.items())
    losses = [
        sum(step) / (2 if form == "tensor" else 1) for step in zip(*(end.said for end in ends), strict=True)
    ]
    assert losses == pytest.approx(learn(one, 0, 1), rel=1e-5 if name == "muon" else 1e-6)


def failing(real: Callable[..., Any], call: int, code: int, times: int = 1) -> Callable[..., Any]:
    """The function, but so many calls from one on raise an OSError."""
    calls = [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if call <= calls[0] < call + times:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    return counted


def caught(ranks: Any, work: Callable[[], None]) -> str:
    """The error of rank 0, after which the other ranks are freed from waiting for it."""
    try:
        work()
    except UserError as error:
        assert not ranks.rank
        # an error within the work of rank 0 alone leaves the others where they wait for its result
        frames = traceback.extract_tb(error.__traceback__)
        ranks.n_broadcasts -= any(frame.name == "on_rank0" for frame in frames)
        ranks.on_rank0(lambda: True)
        return str(error)
    return ""


def save_with_errors(tmp_path: Path, ranks: ProcessGroup) -> list[str]:
    """The errors of saves on disks that fail, and in a directory that is another one on each rank."""
    training, said = made(2), []  # without a state of the optimizer yet
    for kind, rank in (("whole", 0), ("sharded", 0), ("sharded", 1)):
        for code in (errno.EIO, errno.ENOSPC):
            root = tmp_path / f"{kind}-{rank}-{code}"
            with pytest.MonkeyPatch.context() as patch:
                if ranks.rank == rank and kind == "whole":
                    patch.setattr(HashingWriter, "write", failing(HashingWriter.write, 5, code))
                elif ranks.rank == rank:
                    patch.setattr(_PartsWriter, "write", failing(_PartsWriter.write, 2, code))
                said.append(caught(ranks, partial(save, training, root, ranks, kind == "sharded")))
    split_checkpoint.VISIBLE_SECONDS, split_checkpoint.MAX_PART_BYTES = 0.0, 1000
    save(training, tmp_path / "small", ranks, sharded=True)
    root = tmp_path / f"machine-{ranks.rank}"
    (root / "step-0").mkdir(parents=True)
    check_shared_directory(tmp_path, ranks)
    said.append(caught(ranks, lambda: check_shared_directory(root, ranks)))
    said.append(caught(ranks, partial(save, training, root, ranks, sharded=True)))
    return said


def test_an_error_of_the_disk_on_any_rank_is_tried_again_or_ends_all(saved: Saved) -> None:
    """No rank is left in a collective that another one has not joined."""
    tmp_path, said_by_rank, _ = saved
    assert said_by_rank[1] == [""] * 8
    for said, (kind, rank) in zip(
        said_by_rank[0][:6:2], (("whole", 0), ("sharded", 0), ("sharded", 1)), strict=True
    ):
        root = tmp_path / f"{kind}-{rank}-{errno.EIO}"
        assert said == "" and sorted(path.name for path in root.iterdir()) == ["latest", "step-0"]
        assert (
            content(root / "step-0").keys() == content(tmp_path / f"{kind}-0-{errno.EIO}" / "step-0").keys()
        )
        read_checkpoint(root / "step-0")
    for said, where in zip(said_by_rank[0][1:6:2], ("", "", " on rank 1"), strict=True):
        assert f"step-0: No space left on device{where}; " in said
    for kind, rank in (("whole", 0), ("sharded", 0), ("sharded", 1)):
        assert not list((tmp_path / f"{kind}-{rank}-{errno.ENOSPC}").iterdir())
    for message, path in zip(
        said_by_rank[0][6:], ("machine-0/.shared-", "machine-1/step-0.tmp-"), strict=True
    ):
        assert message.startswith(f"train.parallel.checkpoint=sharded: rank 1 does not see {tmp_path}/{path}")
        assert "which rank 0 has written; out must be in a directory that all machines share" in message
    small, large = (tmp_path / name / "step-0" for name in ("small", f"sharded-0-{errno.EIO}"))
    assert len(list(large.glob("model/*"))) == 2 and len(list(small.glob("model/*"))) == 14
    found, wanted = (read_checkpoint(path).tensors["model"] for path in (small, large))
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert [path.name for path in (tmp_path / "machine-0").iterdir()] == ["step-0"]


def test_a_sharded_run_is_read_like_any_other_and_goes_on_with_another_number(place: Path) -> None:
    options: dict[str, Any] = {"average_checkpoints": 2, "parallel": {"shard": 2, "checkpoint": "sharded"}}
    one = trained(recipe_of(place, "language-model", "one", average_checkpoints=2), 1)
    recipe = recipe_of(place, "language-model", "parts", **options)
    trained(recipe_of(place, "language-model", "parts", steps=4, **options), 2)
    newest = recipe.out / "checkpoints" / "step-4"
    assert (newest / "model").is_dir() and not (newest / "model.safetensors").exists()
    assert {file.status for file in verify_run(recipe.out)} == {"ok"}
    final = load_file(recipe.out / "model.safetensors")
    (recipe.out / "model.safetensors").unlink()  # and the checkpoint that was chosen takes its place
    loaded = named_state(load(recipe.out).model)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in final.items())
    back = recipe_of(place, "language-model", "parts", average_checkpoints=2)
    assert_same(one, trained(back, 1, resume=True))


def memory(field: str) -> int:
    """Bytes of this process: resident now (VmRSS), or at most since the last ``forget_peak`` (VmHWM)."""
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status[field].split()[0])


def free_at_once() -> None:
    """Let malloc give memory back when it is freed; it would keep it, and count."""
    m_mmap_threshold = -3
    ctypes.CDLL(None).mallopt(m_mmap_threshold, 2**18)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak of memory from Linux")
@pytest.mark.parametrize("sharded", [False, True])
def test_a_save_and_a_restore_take_memory_for_few_tensors(sharded: bool, tmp_path: Path) -> None:
    """Twelve matrices of 8 MB, of which each rank has half: 144 MB with the state of Adam."""

    def large(ranks: ProcessGroup) -> TrainState:
        model = nn.Sequential(*(nn.Linear(1000, 2000) for _ in range(12)))
        fully_shard(model)
        training = TrainState(model, TrainConfig(steps=1), 8, 1)
        training.is_split = True
        return training

    def work(ranks: ProcessGroup) -> list[int]:
        split_checkpoint.MAX_PART_BYTES = 2**23
        training, rises = large(ranks), []
        for p in training.model.parameters():
            p.grad = torch.zeros_like(p)
        training.optimizers[0].step()
        training.model.zero_grad()
        again = large(ranks)
        for action in (
            lambda: save(training, tmp_path, ranks, sharded),
            lambda: again.restore(
                share_checkpoint(None if ranks.rank else open_lazy_checkpoint(tmp_path / "step-0"), ranks)
            ),
        ):
            Path("/proc/self/clear_refs").write_text("5")
            before = memory("VmRSS")
            action()
            rises.append(memory("VmHWM") - before)
        return rises

    ends = together(2, work, timeout=60, before=free_at_once)
    assert [end.code for end in ends] == [0, 0], ends
    for end in ends:
        assert end.said[0] < 40e6 and end.said[1] < 96e6 + 40e6, end.said


def test_parts_of_a_model_that_is_whole_everywhere_are_refused(place: Path) -> None:
    recipe = recipe_of(place, "language-model", "no-parts", parallel={"checkpoint": "sharded"})
    with pytest.raises(
        UserError,
        match=r"train.parallel \(one process\): checkpoint=sharded saves .* set whole, or split the model",
    ):
        run_training(recipe, report=Notes())
    assert not list(recipe.out.glob("checkpoints/*"))
