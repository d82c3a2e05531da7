"""No damage is silent: whatever is done to the newest checkpoint, it is named and the one before is taken."""

import os
import random
import shutil

import pytest
import torch
from tests.checkpoint.checkpoint_corruption_helpers import content, falls_back
from tests.checkpoint.checkpoint_corruption_helpers import pristine as pristine
from tests.checkpoint.checkpoint_corruption_helpers import run as run

from polyhead.checkpoint.checkpoint import read_checkpoint, read_newest_checkpoint, save_checkpoint
from polyhead.checkpoint.safetensors_io import check_tensors
from polyhead.core.errors import UserError

FILES = ["model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json", "manifest.json"]


@pytest.mark.acceptance("B12")
@pytest.mark.acceptance("R3")
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_never_silent(run, caplog, name):
    """64 random bytes of each file, each of their 8 bits: 2560 damages in all."""
    path = run / "step-2" / name
    good = path.read_bytes()
    rng = random.Random(name)
    for at in [rng.randrange(len(good)) for _ in range(64)]:
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            path.write_bytes(bad)
            caplog.clear()
            found = read_newest_checkpoint(run)
            assert found is not None
            assert found.step == 1, f"bit {bit} of byte {at}"
            assert len(caplog.records) == 1
            assert "step-2" in caplog.text
    path.write_bytes(good)
    assert read_newest_checkpoint(run).step == 2


@pytest.mark.acceptance("B12")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("percent", [0, 1, 25, 50, 99, 101])
def test_a_file_of_another_length_is_refused(run, caplog, name, percent):
    path = run / "step-2" / name
    good = path.read_bytes()
    path.write_bytes((good + bytes(100))[: len(good) * percent // 100 + (percent > 100)])
    falls_back(run, caplog, name)


@pytest.mark.acceptance("B12")
@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(run, caplog, name):
    (run / "step-2" / name).unlink()
    falls_back(run, caplog, name, "missing")


@pytest.mark.acceptance("B12")
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_step_is_refused(run, caplog, name):
    one, two = run / "step-1" / name, run / "step-2" / name
    if one.read_bytes() == two.read_bytes():  # the generator did not move: nothing is wrong
        assert name == "rng.safetensors"
        return
    shutil.copy(one, two)
    falls_back(run, caplog)


@pytest.mark.acceptance("B12")
def test_a_renamed_checkpoint_is_refused(run, caplog):
    (run / "step-2").rename(run / "step-3")
    caplog.clear()
    assert read_newest_checkpoint(run).step == 1
    assert "holds step 2, not 3" in caplog.text


def test_a_checkpoint_may_be_copied_to_a_name_without_a_number(run):
    assert read_checkpoint(shutil.copytree(run / "step-2", run / "best")).step == 2


@pytest.mark.acceptance("B12")
def test_a_file_too_many_is_refused(run, caplog):
    (run / "step-2" / "extra.safetensors").write_bytes(b"")
    falls_back(run, caplog, "not listed ['extra.safetensors']")


@pytest.mark.acceptance("F10")
@pytest.mark.parametrize("name", [*FILES, ""])
def test_links_are_not_followed(run, caplog, name):
    path = run / "step-2" / name if name else run / "step-2"
    path.rename(run / "elsewhere")
    path.symlink_to(run / "elsewhere")
    falls_back(run, caplog, "link")


@pytest.mark.acceptance("F10")
def test_what_is_not_a_plain_file_does_not_hang(run, caplog):
    path = run / "step-2" / "state.json"
    path.unlink()
    os.mkfifo(path)
    falls_back(run, caplog, "not a regular file")
    path.unlink()
    path.mkdir()
    falls_back(run, caplog, "state.json")


CHANGES = {
    "a missing key": lambda model: model.pop("b"),
    "an extra key": lambda model: model.update(more=torch.zeros(1)),
    "another dtype": lambda model: model.update(w=model["w"].double()),
    "another shape": lambda model: model.update(w=model["w"].reshape(4, 16)),
}


@pytest.mark.acceptance("B12")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_tensors_changed_after_the_save_are_refused_and_changed_ones_that_were_saved_do_not_fit(
    run, caplog, change
):
    changed = content(2.0)
    change(changed["model"])
    path = save_checkpoint(run / "other", 2, changed, {"step": 2})
    with pytest.raises(UserError, match="does not match"):
        check_tensors(read_checkpoint(path).tensors["model"], content(2.0)["model"], path)
    shutil.copy(path / "model.safetensors", run / "step-2" / "model.safetensors")
    falls_back(run, caplog, "model.safetensors")


@pytest.mark.acceptance("B12")
def test_a_run_with_no_whole_checkpoint_has_no_newest_and_says_why(run, caplog):
    for step in (1, 2):
        (run / f"step-{step}" / "state.json").write_text("{}")
    assert read_newest_checkpoint(run) is None
    assert len(caplog.records) == 2
