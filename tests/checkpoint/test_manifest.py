"""Tests of checkpoint/manifest.py."""

import hashlib
import json
from pathlib import Path

import pytest
from tests.checkpoint.checkpoint_corruption_helpers import falls_back
from tests.checkpoint.checkpoint_corruption_helpers import pristine as pristine
from tests.checkpoint.checkpoint_corruption_helpers import run as run

from polyhead.checkpoint.checkpoint import read_checkpoint
from polyhead.checkpoint.manifest import parse_object
from polyhead.core.errors import UserError


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
