"""No damage is silent: whatever is done to the newest checkpoint, it is named and the one before is taken."""

import hashlib
import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from polyhead.checkpoint.checkpoint import read_checkpoint, read_newest_checkpoint, save_checkpoint
from polyhead.checkpoint.manifest import parse_object
from polyhead.checkpoint.safetensors_io import check_tensors, read_safetensors
from polyhead.core.errors import UserError

FILES = ["model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json", "manifest.json"]


def content(value: float) -> dict:
    return {
        "model": {"w": torch.full((8, 8), value), "b": torch.zeros(8)},
        "optimizer": {"state/0/exp_avg": torch.full((8, 8), value), "state/0/step": torch.tensor(value)},
        "rng": {"cpu": torch.arange(64, dtype=torch.uint8)},
    }


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pristine")
    for step in (1, 2):
        save_checkpoint(root, step, content(step), {"step": step, "note": "abc"}, extra={"tokenizer": "0123"})
    return root


@pytest.fixture
def run(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "run"))


def falls_back(run: Path, caplog, *words: str) -> None:
    """Step 2 is refused in one line, and step 1 is taken with a warning that names step 2."""
    with pytest.raises(UserError) as error:
        read_checkpoint(run / "step-2")
    for word in (str(run / "step-2"), *words):
        assert word in str(error.value)
    caplog.clear()
    found = read_newest_checkpoint(run)
    assert found is not None
    assert found.step == 1
    assert [str(run / "step-2") in record.getMessage() for record in caplog.records] == [True]


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
    falls_back(run, caplog, "not a plain file")
    path.unlink()
    path.mkdir()
    falls_back(run, caplog, "state.json")


def rewrite(path: Path, /, **changes) -> None:
    """Change the manifest and sign it anew, as a program that means harm, or one of the future, would."""
    body = json.loads((path / "manifest.json").read_bytes()) | changes
    body.pop("sha256")
    body = {key: value for key, value in body.items() if value is not ...}

    def text(body):
        return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"

    (path / "manifest.json").write_bytes(text(body | {"sha256": hashlib.sha256(text(body)).hexdigest()}))


@pytest.mark.acceptance("B12")
@pytest.mark.acceptance("B14")
def test_a_newer_format_is_named_as_such(run, caplog):
    rewrite(run / "step-2")
    assert read_checkpoint(run / "step-2").step == 2
    rewrite(run / "step-2", format=2, something="new")
    falls_back(run, caplog, "format version 2", "use a newer polyhead")


FORGED = {
    "no step": {"step": ...},
    "step is text": {"step": "2"},
    "negative step": {"step": -2},
    "no files": {"files": ...},
    "files is a list": {"files": []},
    "no state": {"files": {}},
    "path outside": {"files": {"../step-1/state.json": {"size": 1, "sha256": "0"}}},
    "absolute path": {"files": {"/etc/passwd": {"size": 1, "sha256": "0"}}},
    "size is text": {"files": {"state.json": {"size": "1", "sha256": "0"}}},
    "no hash": {"files": {"state.json": {"size": 1}}},
    "format is text": {"format": "1"},
    "old format": {"format": 0},
    "no format": {"format": ...},
    "unknown key": {"more": 1},
    "extra is a list": {"extra": [1]},
}


@pytest.mark.acceptance("B12")
@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED)
def test_a_forged_manifest_is_refused_in_a_line(run, caplog, changes):
    rewrite(run / "step-2", **changes)
    falls_back(run, caplog)


@pytest.mark.acceptance("B12")
@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"\xff", b'{"a":', b"[" * 100_000, b"9" * 5000], ids=range(7)
)
def test_what_is_not_an_object_is_refused(run, caplog, text):
    (run / "step-2" / "manifest.json").write_bytes(text)
    falls_back(run, caplog, "manifest.json")
    with pytest.raises(UserError, match="somewhere"):
        parse_object(text, Path("somewhere"))


@pytest.mark.acceptance("F10")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 8,
        (1 << 62).to_bytes(8, "little"),
        (200_000_000).to_bytes(8, "little") + b" " * 100,
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"null",
        (60).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,1000000]}}',
        (40).to_bytes(8, "little") + b'{"__metadata__":{"a":["b"]}}'.ljust(40),
        (20).to_bytes(8, "little") + b'{"__metadata__": 3 }',
        (9000).to_bytes(8, "little") + b"[" * 9000,
    ],
    ids=range(10),
)
def test_a_file_that_is_not_tensors_is_refused_in_a_line(data):
    with pytest.raises(UserError, match=r"x\.safetensors"):
        read_safetensors(data, "x.safetensors")


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
    with pytest.raises(UserError, match="does not fit"):
        check_tensors(read_checkpoint(path).tensors["model"], content(2.0)["model"], path)
    shutil.copy(path / "model.safetensors", run / "step-2" / "model.safetensors")
    falls_back(run, caplog, "model.safetensors")


@pytest.mark.acceptance("B12")
def test_a_run_with_no_whole_checkpoint_has_no_newest_and_says_why(run, caplog):
    for step in (1, 2):
        (run / f"step-{step}" / "state.json").write_text("{}")
    assert read_newest_checkpoint(run) is None
    assert len(caplog.records) == 2
