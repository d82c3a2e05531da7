import os

import pytest
from tests.hf.conftest import make
from tests.hf.load_helpers import run_script

import polyhead as ph
from polyhead.core.errors import UserError

SCRIPT = """
import polyhead as ph, polyhead.core.errors
print(ph.load("owner/small").config.n_layers)
try:
    ph.load("owner/large")
except polyhead.core.errors.UserError as error:
    print(error)
"""


@pytest.mark.slow
def test_hub_name_is_loaded_from_cache(tmp_path):
    """A cache as huggingface_hub has it: links from a snapshot to blobs; what is not in it is named."""
    repository = tmp_path / "hub/models--owner--small"
    make(tmp_path / "files", "GPT2Config", n_embd=16, n_layer=1, n_head=2, n_positions=32)
    snapshot = repository / "snapshots/abc"
    for directory in (snapshot, repository / "blobs", repository / "refs"):
        directory.mkdir(parents=True)
    (repository / "refs/main").write_text("abc")
    for path in (tmp_path / "files").iterdir():
        path.rename(repository / "blobs" / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    process = run_script(SCRIPT, os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}, tmp_path)
    assert process.stdout.splitlines() == [
        "1",
        "no directory 'owner/large', and it cannot be downloaded from the hub: HF_HUB_OFFLINE is set, and "
        "the cache does not have all of it",
    ], process.stderr
    with pytest.raises(UserError, match="no run directory"):
        ph.load(tmp_path / "owner/small")
