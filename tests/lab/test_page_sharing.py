import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.cache.block_manager import BlockStats
from polyhead.config.generation_config import GenerationConfig
from polyhead.lab.page_sharing import (
    RecordingPagedCache,
    SharingSetup,
    from_usages,
    list_setups,
    measure_sharing,
)
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["a dog barks at the cat .", "the cat looks at a dog .", "two dogs bark ."]


def the_run(kind="decoder"):
    tokens = train_tokenizer(TEXTS * 5, Choice("bpe"), 280)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48}
    made = build(ModelConfig(kind=kind, vocab_size=tokens.vocab_size, **sizes), seed=1)
    return Run(made, tokens, GenerationConfig(max_length_ratio=1.0, max_length_extra=3))


def usage(used, unshared):
    return BlockStats(4, 100, used, 0, 0, unshared, 0, 0, 100)


def test_what_is_saved_at_the_peak_and_over_all_steps():
    found = from_usages([usage(2, 2), usage(4, 8), usage(6, 10)])
    assert found.peak == pytest.approx(1 - 6 / 10)
    assert found.mean == pytest.approx(1 - 12 / 20)
    assert found.block_size == 4


def test_samples_share_the_full_pages_of_their_prompt():
    shape = build(
        ModelConfig(kind="decoder", vocab_size=9, d_model=16, n_heads=2, n_layers=1, d_ff=8, max_len=32), 1
    ).cache_shape
    RecordingPagedCache.history.clear()
    cache, prompt, n, block = RecordingPagedCache(shape, 1, 32, block_size=4), 10, 4, 4
    cache.prepare_step([0], torch.arange(prompt)[None])
    cache.select([0] * n)
    for at in range(prompt, prompt + 5):
        cache.prepare_step(range(n), torch.full((n, 1), at))
        pages = -(-(at + 1) // block)
        last = RecordingPagedCache.history[-1]
        assert (last.unshared_blocks, last.used_blocks) == (
            n * pages,
            prompt // block + n * (pages - prompt // block),
        )
    assert len(RecordingPagedCache.history) == 6


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_every_way_of_decoding_is_watched(kind):
    run = the_run(kind)
    for way in list_setups(run):
        found = measure_sharing(run, TEXTS[0], way, block_size=2, new_tokens=6)
        assert found.block_size == 2
        assert 0 < found.mean < 1 - 1 / way.n  # less than if all were one
    assert SharingSetup(8, "samples") in list_setups(the_run("decoder"))
    assert list_setups(the_run("encoder-decoder")) == [SharingSetup(5, "beams")]
