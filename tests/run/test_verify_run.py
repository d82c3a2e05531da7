import pytest
from tests.run.run_helpers import edit, make_run

from polyhead.checkpoint.checkpoint import save_checkpoint
from polyhead.core.errors import UserError
from polyhead.run.verify_run import verify_run

NAMES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
CHECKPOINTS = {"checkpoints/step-1": "ok", "checkpoints/step-2": "ok"}


def statuses(directory):
    return {file.name: file.status for file in verify_run(directory)}


@pytest.fixture
def expected(run_copy):
    for step in (1, 2):
        groups = {"model": dict(make_run().model.named_parameters())}
        save_checkpoint(run_copy / "checkpoints", step, groups, {})
    expected = dict.fromkeys(("manifest.json", *NAMES, "model.safetensors"), "ok") | CHECKPOINTS
    assert statuses(run_copy) == expected
    return expected


@pytest.mark.parametrize(
    "name", ["manifest.json", "model.safetensors", "checkpoints/step-1/model.safetensors"]
)
def test_flipped_bit_is_found_in_its_file(run_copy, expected, name):
    content = (run_copy / name).read_bytes()
    (run_copy / name).write_bytes(content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])
    file = name.removesuffix("/model.safetensors") if "step" in name else name
    if name == "manifest.json":  # the digests are lost
        expected = {file: "ok"} | CHECKPOINTS
    assert statuses(run_copy) == expected | {file: "damaged"}


@pytest.mark.parametrize("name", [*NAMES, "model.safetensors"])
def test_missing_file_and_directory_in_its_place(run_copy, expected, name):
    (run_copy / name).unlink()
    assert statuses(run_copy) == expected | {name: "missing"}
    (run_copy / name).mkdir()
    assert statuses(run_copy) == expected | {name: "damaged"}
    (run_copy / name).rmdir()
    with (run_copy / name).open("wb") as file:
        file.truncate(1 << 40)  # would take minutes to hash
    assert statuses(run_copy) == expected | {name: "damaged"}


def test_edited_files_and_lost_digests(run_copy, expected):
    edit(run_copy, "generation_config.json", beam_size=3)
    expected |= {"generation_config.json": "changed"}
    assert statuses(run_copy) == expected
    edit(run_copy, "config.json", d_ff=64)
    assert statuses(run_copy) == expected | {"config.json": "changed", str(run_copy): "damaged"}
    assert "does not match" in list(verify_run(run_copy))[-1].reason
    edit(run_copy, "config.json", d_ff=32)
    (run_copy / "manifest.json").unlink()
    assert statuses(run_copy) == CHECKPOINTS
    (run_copy / "tokenizer.json").write_text("{")
    assert statuses(run_copy)[str(run_copy)] == "damaged"


def test_directory_that_is_no_run_is_refused(run_copy):
    with pytest.raises(UserError, match="no run directory"):
        statuses(run_copy / "nothing")
    edit(run_copy, "config.json", model_type="gpt2")
    with pytest.raises(UserError, match="is a published checkpoint, which has no digests; expected a run"):
        statuses(run_copy)
