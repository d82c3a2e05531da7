import os
import random
import shutil

import pytest
import torch
from tests.checkpoint.checkpoint_helpers import make_training_tensors

from polyhead.checkpoint.checkpoint import read_checkpoint, read_newest_checkpoint, save_checkpoint
from polyhead.checkpoint.safetensors_io import check_tensors
from polyhead.core.errors import UserError

FILES = ["model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json", "manifest.json"]


@pytest.mark.acceptance("B12", "R3")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_flipped_bit_is_detected(run_dir, caplog, name, seed):
    path = run_dir / "step-2" / name
    content, rng = path.read_bytes(), random.Random(f"{name} {seed}")
    for position in [rng.randrange(len(content)) for _ in range(16)]:
        for bit in range(8):
            damaged_content = bytearray(content)
            damaged_content[position] ^= 1 << bit
            path.write_bytes(damaged_content)
            caplog.clear()
            assert read_newest_checkpoint(run_dir).step == 1, f"bit {bit} of byte {position}"
            assert len(caplog.records) == 1 and "step-2" in caplog.text
    path.write_bytes(content)
    assert read_newest_checkpoint(run_dir).step == 2


@pytest.mark.acceptance("B12", "F10")
@pytest.mark.parametrize("name", FILES)
def test_changed_or_missing_file_is_refused(run_dir, assert_falls_back, name):
    path, older = run_dir / "step-2" / name, run_dir / "step-1" / name
    content = path.read_bytes()
    for percent in (0, 1, 25, 50, 99, 101):
        path.write_bytes((content + bytes(100))[: len(content) * percent // 100 + (percent > 100)])
        assert_falls_back(name)
    if content != older.read_bytes():
        shutil.copy(older, path)
        assert_falls_back()
    path.unlink()
    assert_falls_back(name, "missing")
    (run_dir / "elsewhere").write_bytes(content)
    path.symlink_to(run_dir / "elsewhere")
    assert_falls_back("link")


@pytest.mark.acceptance("B12", "F10")
def test_special_and_unlisted_files_are_refused(run_dir, assert_falls_back):
    directory = run_dir / "step-2"
    (directory / "extra.safetensors").write_bytes(b"")
    assert_falls_back("not listed ['extra.safetensors']")
    (directory / "extra.safetensors").unlink()
    path = directory / "state.json"
    path.unlink()
    os.mkfifo(path)
    assert_falls_back("not a regular file")
    path.unlink()
    path.mkdir()
    assert_falls_back("state.json")
    directory.rename(run_dir / "elsewhere")
    directory.symlink_to(run_dir / "elsewhere")
    assert_falls_back("link")


@pytest.mark.acceptance("B12")
def test_renamed_checkpoint_is_refused(run_dir, caplog):
    assert read_checkpoint(shutil.copytree(run_dir / "step-2", run_dir / "best")).step == 2
    (run_dir / "step-2").rename(run_dir / "step-3")
    assert read_newest_checkpoint(run_dir).step == 1 and "holds step 2, not 3" in caplog.text


CHANGES = {
    "missing key": lambda model: model.pop("b"),
    "extra key": lambda model: model.update(more=torch.zeros(1)),
    "dtype": lambda model: model.update(w=model["w"].double()),
    "shape": lambda model: model.update(w=model["w"].reshape(4, 16)),
}


@pytest.mark.acceptance("B12")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_tensors_are_refused(run_dir, assert_falls_back, change):
    """After the save by the hash; before it because they do not fit the model."""
    tensors = make_training_tensors(2.0)
    change(tensors["model"])
    path = save_checkpoint(run_dir / "other", 2, tensors, {"step": 2})
    with pytest.raises(UserError, match="does not match"):
        check_tensors(read_checkpoint(path).tensors["model"], make_training_tensors(2.0)["model"], path)
    shutil.copy(path / "model.safetensors", run_dir / "step-2" / "model.safetensors")
    assert_falls_back("model.safetensors")


@pytest.mark.acceptance("B12")
def test_run_without_a_valid_checkpoint_has_no_newest(run_dir, caplog):
    for step in (1, 2):
        (run_dir / f"step-{step}" / "state.json").write_text("{}")
    assert read_newest_checkpoint(run_dir) is None and len(caplog.records) == 2
