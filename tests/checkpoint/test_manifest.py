import hashlib
import json
from pathlib import Path

import pytest
import yaml

from polyhead.checkpoint.checkpoint import read_checkpoint
from polyhead.checkpoint.manifest import parse_object
from polyhead.core.errors import UserError

FORGERIES = yaml.safe_load((Path(__file__).parent / "forged_manifests.yaml").read_text())


def dump(body):
    return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"


def rewrite_manifest(path, /, **changes):
    """Change the manifest and its signature, as a hostile or a newer program would."""
    body = json.loads((path / "manifest.json").read_bytes()) | changes
    body = {key: value for key, value in body.items() if value != "removed" and key != "sha256"}
    signature = hashlib.sha256(dump(body)).hexdigest()
    (path / "manifest.json").write_bytes(dump(body | {"sha256": signature}))


@pytest.mark.acceptance("B12", "B14")
def test_newer_format_version_is_named(run_dir, assert_falls_back):
    rewrite_manifest(run_dir / "step-2")
    assert read_checkpoint(run_dir / "step-2").step == 2
    rewrite_manifest(run_dir / "step-2", format=2, something="new")
    assert_falls_back("format version 2", "use a newer polyhead")


@pytest.mark.acceptance("B12")
@pytest.mark.parametrize("changes", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.whole
def test_forged_manifest_is_refused(run_dir, assert_falls_back, changes):
    rewrite_manifest(run_dir / "step-2", **changes)
    assert_falls_back()


@pytest.mark.acceptance("B12")
@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"\xff", b'{"a":', b"[" * 100_000, b"9" * 5000], ids=range(7)
)
def test_text_that_is_no_object_is_refused(run_dir, assert_falls_back, text):
    (run_dir / "step-2" / "manifest.json").write_bytes(text)
    assert_falls_back("manifest.json")
    with pytest.raises(UserError, match="somewhere"):
        parse_object(text, Path("somewhere"))
