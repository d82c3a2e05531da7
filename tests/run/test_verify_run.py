"""Tests of run/verify_run.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.run.run_helpers import copy as copy
from tests.run.run_helpers import edited, run
from tests.run.run_helpers import saved as saved

from polyhead.checkpoint.checkpoint import save_checkpoint
from polyhead.core.errors import UserError
from polyhead.run.verify_run import verify_run

NAMES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def statuses(directory: Path) -> dict[str, str]:
    return {file.name: file.status for file in verify_run(directory)}


@pytest.fixture
def expected(copy: Path) -> dict[str, str]:
    """Every file of a run with two checkpoints is as it was written."""
    for step in (1, 2):
        save_checkpoint(copy / "checkpoints", step, {"model": dict(run().model.named_parameters())}, {})
    names = ("manifest.json", *NAMES, "model.safetensors", "checkpoints/step-1", "checkpoints/step-2")
    found = statuses(copy)
    assert found == dict.fromkeys(names, "ok")
    return found


@pytest.mark.parametrize(
    "name", ["manifest.json", "model.safetensors", "checkpoints/step-1/model.safetensors"]
)
def test_a_flipped_bit_is_found_in_its_file_alone(copy: Path, expected: dict[str, str], name: str) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])
    file = name.removesuffix("/model.safetensors") if "step" in name else name
    found = statuses(copy)
    assert found.pop(file) == "damaged"
    if name == "manifest.json":  # the digests are lost
        assert found == {"checkpoints/step-1": "ok", "checkpoints/step-2": "ok"}
    else:
        assert found == {other: "ok" for other in expected if other != file}


@pytest.mark.parametrize("name", [*NAMES, "model.safetensors"])
def test_a_missing_file_and_a_directory_in_its_place_are_found(
    copy: Path, expected: dict[str, str], name: str
) -> None:
    (copy / name).unlink()
    assert statuses(copy) == expected | {name: "missing"}
    (copy / name).mkdir()
    assert statuses(copy) == expected | {name: "damaged"}


def test_an_edit_is_no_damage_if_the_run_loads(copy: Path, expected: dict[str, str]) -> None:
    edited("generation_config.json", beam_size=3)(copy)
    assert statuses(copy) == expected | {"generation_config.json": "changed"}
    edited("config.json", d_ff=64)(copy)
    changed = {"generation_config.json": "changed", "config.json": "changed"}
    assert statuses(copy) == expected | changed | {str(copy): "damaged"}
    assert "does not match" in list(verify_run(copy))[-1].reason


def test_a_run_without_digests_is_opened_and_its_checkpoints_are_verified(
    copy: Path, expected: dict[str, str]
) -> None:
    (copy / "manifest.json").unlink()
    assert statuses(copy) == {"checkpoints/step-1": "ok", "checkpoints/step-2": "ok"}
    (copy / "tokenizer.json").write_text("{")
    assert statuses(copy)[str(copy)] == "damaged"


def test_what_is_no_run_is_refused(copy: Path) -> None:
    with pytest.raises(UserError, match="no run directory"):
        statuses(copy / "nothing")
    edited("config.json", model_type="gpt2")(copy)
    with pytest.raises(UserError, match="is a published checkpoint, which has no digests; expected a run"):
        statuses(copy)
