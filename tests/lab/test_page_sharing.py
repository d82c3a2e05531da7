import pytest
import torch
from tests.lab.caches_helpers import SENTENCES, make_run, model

from polyhead.cache.block_manager import BlockStats
from polyhead_lab.paging import (
    RecordingPagedCache,
    SharingSetup,
    from_usages,
    list_setups,
    measure_sharing,
)


def test_savings_at_peak_and_over_all_steps():
    counts = [(2, 2), (4, 8), (6, 10)]  # blocks, and blocks without sharing
    sharing = from_usages([BlockStats(4, 100, n, 0, 0, n_unshared, 0, 0, 100) for n, n_unshared in counts])
    assert sharing.peak == pytest.approx(1 - 6 / 10)
    assert sharing.mean == pytest.approx(1 - 12 / 20)
    assert sharing.block_size == 4


def test_samples_share_full_pages_of_prompt():
    RecordingPagedCache.history.clear()
    prompt, n, block = 10, 4, 4
    cache = RecordingPagedCache(model(n_layers=1).cache_shape, 1, 32, block_size=block)
    cache.prepare_step([0], torch.arange(prompt)[None])
    cache.select([0] * n)
    for pos in range(prompt, prompt + 5):
        cache.prepare_step(range(n), torch.full((n, 1), pos))
        pages = -(-(pos + 1) // block)
        last, n_shared = RecordingPagedCache.history[-1], prompt // block
        assert (last.unshared_blocks, last.used_blocks) == (n * pages, n_shared + n * (pages - n_shared))
    assert len(RecordingPagedCache.history) == 6


@pytest.mark.parametrize(
    ("kind", "setup"),
    [("decoder", SharingSetup(8, "samples")), ("encoder-decoder", SharingSetup(5, "beams"))],
)
def test_sharing_is_measured_in_every_setup(kind, setup):
    run = make_run(kind)
    setups = list_setups(run)
    assert setup in setups and (kind == "decoder" or len(setups) == 1)
    for setup in setups:
        sharing = measure_sharing(run, SENTENCES[0], setup, block_size=2, new_tokens=6)
        assert sharing.block_size == 2
        assert 0 < sharing.mean < 1 - 1 / setup.n  # less than if all were one
