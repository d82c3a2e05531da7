"""A finished run is as safe as its checkpoints: digests, lost weights and wrong kinds of file."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.run.run_helpers import GENERATION, TEXTS, edited, run
from tests.run.run_helpers import copy as copy
from tests.run.run_helpers import saved as saved

import polyhead as ph
from polyhead.checkpoint.checkpoint import save_checkpoint
from polyhead.checkpoint.weight_selection import WeightSelection
from polyhead.core.errors import UserError
from polyhead.run import run as run_module
from polyhead.run.run import Run
from polyhead.run.run_manifest import write_run_manifest

WEIGHTS = "model.safetensors"


def weights(loaded: Run) -> dict[str, torch.Tensor]:
    return dict(loaded.model.named_parameters())


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_manifest_has_the_digest_of_every_file(saved: Path) -> None:
    files = json.loads((saved / "manifest.json").read_text())["files"]
    names = {"config.json", "generation_config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"}
    assert files == {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name in names
        for content in [(saved / name).read_bytes()]
    }


@pytest.mark.acceptance("B12")
def test_each_of_160_flipped_bits_of_finished_weights_is_refused(copy: Path) -> None:
    path = copy / WEIGHTS
    good, rng, refused = path.read_bytes(), random.Random(160), 0
    for _ in range(160):
        bad = bytearray(good)
        bad[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(UserError, match=f"^{path} is damaged: its SHA-256 is ") as error:
            ph.load(copy)
        refused += "\n" not in str(error.value)
    assert refused == 160
    path.write_bytes(good)
    ph.load(copy)


@pytest.mark.parametrize("percent", [0, 1, 50, 99, 101])
def test_weights_of_another_length_are_refused(copy: Path, percent: int) -> None:
    path = copy / WEIGHTS
    good = path.read_bytes()
    path.write_bytes((good + bytes(999))[: len(good) * percent // 100])
    with pytest.raises(UserError, match=f"^{path} is damaged or truncated: it has "):
        ph.load(copy)


def test_weights_of_another_run_are_refused(copy: Path, tmp_path: Path) -> None:
    other = run()
    for tensor in other.model.parameters():
        tensor.data += 1
    other.save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / WEIGHTS, copy / WEIGHTS)
    with pytest.raises(UserError, match="is damaged: its SHA-256"):
        ph.load(copy)


def test_an_edit_is_taken_and_noted_in_one_line(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert ph.load(copy).generation == GENERATION
    assert caplog.messages == []
    edited("generation_config.json", beam_size=3)(copy)
    assert ph.load(copy).generation.beam_size == 3
    assert caplog.messages == [f"{copy} differs from what training wrote: changed: generation_config.json"]
    edited("config.json", dropout=0.2)(copy)
    (copy / "generation_config.json").unlink()
    caplog.clear()
    assert ph.load(copy).config.dropout == 0.2
    assert caplog.messages == [
        f"{copy} differs from what training wrote: changed: config.json; missing: generation_config.json"
    ]


def test_a_run_without_digests_is_loaded_as_before(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    (copy / "manifest.json").unlink()
    edited("generation_config.json", beam_size=3)(copy)
    assert ph.load(copy).generation.beam_size == 3
    assert caplog.messages == []


def test_a_damaged_manifest_is_refused_with_the_way_out(copy: Path) -> None:
    path = copy / "manifest.json"
    path.write_text(path.read_text().replace('"step": 0', '"step": 1'))
    with pytest.raises(UserError, match=r"manifest\.json is damaged: .*; remove it to use the run"):
        ph.load(copy)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.mkdir()


def nothing(path: Path) -> None:
    path.symlink_to("nothing")


@pytest.mark.acceptance("F10")
@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("make", [fifo, loop, device, directory, nothing])
def test_what_cannot_be_read_is_damage_and_not_absence(
    copy: Path, make: Callable[[Path], None], has_manifest: bool
) -> None:
    """Also where a missing file would be no mistake; nothing waits for the writer of a fifo."""
    if not has_manifest:
        (copy / "manifest.json").unlink()
    names = ["config.json", "generation_config.json", "recipe.yaml", "tokenizer.json",
             "tokenizer_config.json", "target_tokenizer.json", WEIGHTS]  # fmt: skip
    for name in names + ["manifest.json"] * has_manifest:
        path, backup = copy / name, copy / "backup"
        if path.exists():
            path.rename(backup)
        make(path)
        with pytest.raises(UserError, match=f"^{path} is (a broken link|not a regular file|a link)"):
            ph.load(copy)
        path.rmdir() if path.is_dir() else path.unlink()
        if backup.exists():
            backup.rename(path)
    ph.load(copy)


def test_a_link_to_weights_on_another_disk_is_followed(copy: Path, tmp_path: Path) -> None:
    expected = weights(ph.load(copy))
    (copy / WEIGHTS).rename(tmp_path / "big")
    (copy / WEIGHTS).symlink_to(tmp_path / "big")
    assert same(weights(ph.load(copy)), expected)


def test_checkpoints_that_are_no_directory_are_damage(copy: Path) -> None:
    (copy / WEIGHTS).unlink()
    (copy / "checkpoints").write_text("")
    with pytest.raises(UserError, match="checkpoints is not a directory"):
        ph.load(copy)


def test_an_interrupted_save_is_no_damage(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New weights are there and their digest is not."""
    changed = run()
    changed.model.requires_grad_(False)
    for tensor in changed.model.parameters():
        tensor += 1

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_run_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            changed.save(copy)
    assert same(weights(ph.load(copy)), weights(changed))


def test_a_resumed_run_keeps_the_digest_of_its_weights(copy: Path) -> None:
    ph.load(copy).save_config_files(copy)
    write_run_manifest(copy)
    good = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(UserError, match="is damaged: its SHA-256"):
        ph.load(copy)


@pytest.fixture
def checkpoints(copy: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Steps 2, 4 and 6 of a run, each with a moving average; the best evaluation was that of step 4."""
    states = {}
    base = {name: p.detach().clone() for name, p in run().model.named_parameters()}
    extra = {"tokenizer_sha256": run().tokenizer.sha256}
    for step in (2, 4, 6):
        groups = {"model": {name: w + step for name, w in base.items()}}
        groups["ema"] = {name: w - step for name, w in base.items()}
        states |= {f"{group}-{step}": tensors for group, tensors in groups.items()}
        state = {"progress": {"step": step, "best_step": min(step, 4)}}
        save_checkpoint(copy / "checkpoints", step, groups, state, extra=extra)
    mean = {name: (states["model-2"][name].double() + states["model-6"][name].double()) / 2 for name in base}
    return states | {"mean": {name: w.float() for name, w in mean.items()}}


@pytest.mark.parametrize(
    ("selection", "expected", "phrase"),
    [
        (WeightSelection([2]), "model-2", "checkpoint 2"),
        (WeightSelection([6]), "model-6", "checkpoint 6"),
        (WeightSelection([4], "ema"), "ema-4", "EMA at step 4"),
        (WeightSelection([2, 6]), "mean", "mean of the checkpoints 2, 6"),
    ],
    ids=str,
)
def test_lost_weights_are_taken_from_the_checkpoints_that_training_chose(
    copy: Path,
    checkpoints: dict[str, dict[str, torch.Tensor]],
    selection: WeightSelection,
    expected: str,
    phrase: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ph.load(copy).save(copy, selection=selection)
    (copy / WEIGHTS).unlink()
    assert same(weights(ph.load(copy)), checkpoints[expected])
    assert caplog.messages == [
        f"{copy} has no {WEIGHTS}: using {phrase}, which was chosen when training ended"
    ]


def test_without_a_record_lost_weights_are_those_of_the_best_evaluation(
    copy: Path, checkpoints: dict[str, dict[str, torch.Tensor]], caplog: pytest.LogCaptureFixture
) -> None:
    (copy / WEIGHTS).unlink()
    (copy / "manifest.json").unlink()
    assert same(weights(ph.load(copy)), checkpoints["ema-4"])
    assert caplog.messages == [f"{copy} has no {WEIGHTS}: using EMA at step 4, that of the best evaluation"]
    shutil.rmtree(copy / "checkpoints" / "step-4")
    caplog.clear()
    assert same(weights(ph.load(copy)), checkpoints["ema-6"])
    assert [message.split(":")[0] for message in caplog.messages] == [
        "skipping a damaged checkpoint",
        f"{copy} has no {WEIGHTS}",
    ]
    assert caplog.messages[1].endswith("using EMA at step 6, the newest")


def test_a_damaged_choice_is_named(
    copy: Path, checkpoints: dict[str, dict[str, torch.Tensor]], caplog: pytest.LogCaptureFixture
) -> None:
    ph.load(copy).save(copy, selection=WeightSelection([2, 6]))
    (copy / WEIGHTS).unlink()
    (copy / "checkpoints" / "step-2" / "state.json").write_text("{}")
    assert same(weights(ph.load(copy)), checkpoints["ema-4"])
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith(
        "skipping mean of the checkpoints 2, 6, which was chosen when training ended: "
    )
    assert caplog.messages[1].endswith("using EMA at step 4, that of the best evaluation")


def test_texts_are_translated_from_config_tokenizer_and_weights(saved: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS):
        shutil.copy(saved / name, tmp_path)
    changes = GENERATION.model_dump(include={"beam_size", "max_length_ratio", "max_length_extra"})
    assert ph.load(tmp_path).translate(TEXTS, **changes) == ph.load(saved).translate(TEXTS)
