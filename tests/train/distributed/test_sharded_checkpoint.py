import ctypes
import errno
import os
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from tests.train.conftest import equal_tensors, user_error
from tests.train.distributed.rank_runs import STEPS, assert_same_run, on_call, recipe_of, train
from tests.train.distributed.sharded_runs import (
    ADAM,
    assert_equal_tensors,
    make_training,
    read_files,
    restore,
    save,
    train_steps,
)
from tests.train.ranks import outputs_of
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.fsdp import fully_shard

from polyhead import load
from polyhead.checkpoint.checkpoint import SavedState, open_lazy_checkpoint, read_checkpoint
from polyhead.config.recipe import TrainConfig
from polyhead.core.atomic_io import HashingWriter
from polyhead.core.errors import UserError
from polyhead.nn.state import named_state
from polyhead.run.verify_run import verify_run
from polyhead.train.distributed import sharded_checkpoint
from polyhead.train.distributed.process_group import SINGLE_PROCESS
from polyhead.train.distributed.rank_sync import share_checkpoint
from polyhead.train.distributed.sharded_checkpoint import _PartsWriter, check_shared_directory, save_sharded
from polyhead.train.run_training import run_training
from polyhead.train.train_state import TrainState

pytestmark = pytest.mark.usefixtures("no_report")
MIXED_DTYPES = ("bfloat16", "float64", "int8")


def load_with_torch(path: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors = {name: torch.full_like(tensor, -1) for name, tensor in like.items()}
    dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=True)
    return tensors


class Saves(NamedTuple):
    root: Path
    errors: list[list[str]]
    training: TrainState


@pytest.fixture(scope="module")
def saves(no_report, tmp_path_factory):
    root = tmp_path_factory.mktemp("saves")
    single = make_training(1)
    train_steps(single, 0, 1)
    save(single, root / "one", SINGLE_PROCESS)

    def work(ranks):
        training = restore(root / "one" / "step-2", ranks)
        save(training, root / "whole", ranks)
        save(training, root / "sharded", ranks, is_sharded=True)
        for source in ("one", "whole", "sharded"):
            training = restore(root / source / "step-2", ranks)
            train_steps(training, ranks.rank, 2)
            save(training, root / f"{source}-on", ranks)
        mixed_dtypes = {name: torch.ones(3, dtype=getattr(torch, name)) for name in MIXED_DTYPES}
        save_sharded(root / "mixed", SavedState(2, {"model": mixed_dtypes}, {}), {}, ranks, is_sharded=False)

        return save_with_errors(root, ranks)

    return Saves(root, outputs_of(2, work), single)


def test_two_ranks_save_and_restore_like_one_process(saves):
    root, _, single = saves
    files = read_files(root / "one/step-2")
    assert read_files(root / "whole/step-2") == files  # to the bit, with manifest and state

    mixed_dtypes = read_checkpoint(root / "mixed/step-2").tensors["model"]
    expected_dtypes = {name: getattr(torch, name) for name in MIXED_DTYPES}
    assert {name: tensor.dtype for name, tensor in mixed_dtypes.items()} == expected_dtypes
    assert all(tensor.tolist() == [1, 1, 1] for tensor in mixed_dtypes.values())
    parts_path = root / "sharded/step-2"
    assert (parts_path / "state.json").read_bytes() == files["state.json"]
    expected, actual = read_checkpoint(root / "one/step-2"), read_checkpoint(parts_path)
    assert actual._replace(path=expected.path, tensors={}) == expected._replace(tensors={})
    for group, tensors in expected.tensors.items():
        lazy = open_lazy_checkpoint(parts_path).tensors[group]
        for read in (actual.tensors[group], lazy, load_with_torch(parts_path / group, tensors)):
            assert equal_tensors(dict(read), dict(tensors))
    train_steps(single, 0, 1)
    resumed_run = read_files(root / "one-on/step-4")
    assert read_files(root / "whole-on/step-4") == read_files(root / "sharded-on/step-4") == resumed_run
    actual = read_checkpoint(root / "one-on/step-4").tensors
    for group, tensors in single.export_state().tensors.items():
        for name, tensor in actual[group].items():
            torch.testing.assert_close(tensor, tensors[name].detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer", [ADAM, {"name": "adafactor"}, {"name": "muon"}], ids=lambda o: o["name"]
)
@pytest.mark.parametrize(
    ("world_size", "layout"), [(2, "shard"), (3, "shard"), (4, "shard"), (4, "groups"), (4, "tensor")]
)
def test_resume_on_any_mesh_matches_one_process(world_size, layout, optimizer, tmp_path):
    single = make_training(1, optimizer, layout)
    train_steps(single, 0, 1)
    save(single, tmp_path / "one", SINGLE_PROCESS)

    def work(ranks):
        training = restore(tmp_path / "one/step-2", ranks, optimizer, layout)
        save(training, tmp_path / "whole", ranks)
        save(training, tmp_path / "sharded", ranks, is_sharded=True)
        rank, n_data = (ranks.rank // 2, 2) if layout == "tensor" else (ranks.rank, world_size)
        restored_training = restore(tmp_path / "sharded/step-2", ranks, optimizer, layout)
        losses = train_steps(restored_training, rank, n_data)
        save(training, tmp_path / "on", ranks)
        return losses

    losses = [sum(step) for step in zip(*outputs_of(world_size, work), strict=True)]
    assert read_files(tmp_path / "whole/step-2") == read_files(tmp_path / "one/step-2")
    assert (tmp_path / "sharded/step-2/model").is_dir()
    assert_equal_tensors(tmp_path / "sharded/step-2", tmp_path / "one/step-2")
    n_copies = 2 if layout == "tensor" else 1
    expected = [n_copies * loss for loss in train_steps(single, 0, 1)]
    assert losses == pytest.approx(expected, rel=1e-5 if optimizer["name"] == "muon" else 1e-6)


def catch_error(ranks, work) -> str:
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


FAILING_WRITES = (("whole", 0), ("sharded", 0), ("sharded", 1))


def save_with_errors(root, ranks):
    training, errors = make_training(2), []  # without a state of the optimizer yet
    for kind, rank in FAILING_WRITES:
        for code in (errno.EIO, errno.ENOSPC):

            def fail(code=code):
                raise OSError(code, os.strerror(code))

            with pytest.MonkeyPatch.context() as patch:
                if ranks.rank == rank and kind == "whole":
                    patch.setattr(HashingWriter, "write", on_call(5, HashingWriter.write, fail))
                elif ranks.rank == rank:
                    patch.setattr(_PartsWriter, "write", on_call(2, _PartsWriter.write, fail))
                path = root / f"{kind}-{rank}-{code}"
                errors.append(catch_error(ranks, partial(save, training, path, ranks, kind == "sharded")))
    sharded_checkpoint.VISIBLE_SECONDS, sharded_checkpoint.MAX_PART_BYTES = 0.0, 1000
    save(training, root / "small", ranks, is_sharded=True)
    path = root / f"machine-{ranks.rank}"
    (path / "step-0").mkdir(parents=True)
    check_shared_directory(root, ranks)
    errors.append(catch_error(ranks, lambda: check_shared_directory(path, ranks)))
    errors.append(catch_error(ranks, partial(save, training, path, ranks, is_sharded=True)))
    return errors


def test_disk_error_is_retried_or_ends_all_ranks(saves):
    """No rank is left in a collective that another one has not joined."""
    root, (errors, other_models), _ = saves
    assert other_models == [""] * 8
    for error, (kind, rank) in zip(errors[:6:2], FAILING_WRITES, strict=True):
        path = root / f"{kind}-{rank}-{errno.EIO}"
        assert error == "" and sorted(file.name for file in path.iterdir()) == ["latest", "step-0"]
        expected = read_files(root / f"{kind}-0-{errno.EIO}/step-0")
        assert read_files(path / "step-0").keys() == expected.keys()
        read_checkpoint(path / "step-0")
    for error, rank in zip(errors[1:6:2], ("", "", " on rank 1"), strict=True):
        assert f"step-0: No space left on device{rank}; " in error
    for kind, rank in FAILING_WRITES:
        assert not list((root / f"{kind}-{rank}-{errno.ENOSPC}").iterdir())
    for error, path in zip(errors[6:], ("machine-0/.shared-", "machine-1/step-0.tmp-"), strict=True):
        assert error.startswith(f"train.parallel.checkpoint=sharded: rank 1 does not see {root}/{path}")
        assert "which rank 0 has written; out must be in a directory that all machines share" in error
    small, large = (root / name / "step-0" for name in ("small", f"sharded-0-{errno.EIO}"))
    assert len(list(large.glob("model/*"))) == 2 and len(list(small.glob("model/*"))) == 14
    assert_equal_tensors(small, large)


def test_sharded_run_loads_and_resumes_on_one_process(corpus_dir):
    options = {"average_checkpoints": 2, "parallel": {"shard": 2, "checkpoint": "sharded"}}
    single = train(recipe_of(corpus_dir, "language-model", "one", average_checkpoints=2), 1)
    recipe = recipe_of(corpus_dir, "language-model", "parts", steps=STEPS // 2, **options)
    train(recipe, 2)
    message = r"train.parallel \(one process\): checkpoint=sharded saves .* set whole, or split the model"
    with user_error(message):
        run_training(recipe_of(corpus_dir, "language-model", "x", parallel={"checkpoint": "sharded"}))
    newest = recipe.out / "checkpoints" / f"step-{STEPS // 2}"
    assert (newest / "model").is_dir() and not (newest / "model.safetensors").exists()
    assert {file.status for file in verify_run(recipe.out)} == {"ok"}
    final = load_file(recipe.out / "model.safetensors")
    (recipe.out / "model.safetensors").unlink()  # the selected checkpoint replaces it
    assert equal_tensors(final, {k: v for k, v in named_state(load(recipe.out).model).items() if k in final})
    recipe = recipe_of(corpus_dir, "language-model", "parts", average_checkpoints=2)
    assert_same_run(single, train(recipe, 1, resume=True))


def read_memory(field: str) -> int:
    """Bytes of this process: resident now (VmRSS), or at most since the last reset of the peak (VmHWM)."""
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status[field].split()[0])


def return_freed_memory() -> None:
    """Let malloc return memory when it is freed, so that it does not count."""
    m_mmap_threshold = -3
    ctypes.CDLL(None).mallopt(m_mmap_threshold, 2**18)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak of memory from Linux")
@pytest.mark.parametrize("is_sharded", [False, True])
def test_save_and_restore_need_memory_of_few_tensors(is_sharded, tmp_path):
    """Twelve matrices of 8 MB, of which each rank has half: 144 MB with the state of Adam."""

    def make_large_training():
        model = nn.Sequential(*(nn.Linear(1000, 2000) for _ in range(12)))
        fully_shard(model)
        return TrainState(model, TrainConfig(steps=1), 8, 1)

    def work(ranks):
        sharded_checkpoint.MAX_PART_BYTES = 2**23
        training, rises = make_large_training(), []
        for p in training.model.parameters():
            p.grad = torch.zeros_like(p)
        training.optimizers[0].step()
        training.model.zero_grad()
        other = make_large_training()

        def restore_other():
            checkpoint = None if ranks.rank else open_lazy_checkpoint(tmp_path / "step-0")
            other.restore(share_checkpoint(checkpoint, ranks))

        for action in (lambda: save(training, tmp_path, ranks, is_sharded), restore_other):
            Path("/proc/self/clear_refs").write_text("5")
            n_resident = read_memory("VmRSS")
            action()
            rises.append(read_memory("VmHWM") - n_resident)
        return rises

    for rise_of_save, rise_of_restore in outputs_of(2, work, setup=return_freed_memory):
        assert rise_of_save < 40e6 and rise_of_restore < 96e6 + 40e6
