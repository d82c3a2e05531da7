"""Tests of hf/hub.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.hf.conftest import make
from tests.hf.load_helpers import ran

import polyhead as ph
from polyhead.core.errors import UserError


def test_a_name_on_the_hub_is_found_in_the_cache_and_told_where_it_is_not(tmp_path: Path) -> None:
    """A cache as huggingface_hub keeps it: links from a snapshot to blobs."""
    repository = tmp_path / "hub/models--owner--small"
    make(tmp_path / "files", "GPT2Config", n_embd=16, n_layer=1, n_head=2, n_positions=32)
    snapshot = repository / "snapshots/abc"
    for place in (snapshot, repository / "blobs", repository / "refs"):
        place.mkdir(parents=True)
    (repository / "refs/main").write_text("abc")
    for path in (tmp_path / "files").iterdir():
        path.rename(repository / "blobs" / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    script = (
        "import polyhead as ph, polyhead.core.errors\n"
        "print(ph.load('owner/small').config.n_layers)\n"
        "try: ph.load('owner/large')\n"
        "except polyhead.core.errors.UserError as error: print(error)"
    )
    done = ran(script, environment, tmp_path)
    assert done.stdout.splitlines() == [
        "1",
        "no directory 'owner/large', and it cannot be downloaded from the hub: HF_HUB_OFFLINE is set, and "
        "the cache does not have all of it",
    ], done.stderr
    with pytest.raises(UserError, match="no run directory"):
        ph.load(tmp_path / "owner/small")
