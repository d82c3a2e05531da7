import pytest
import torch
from tests.train.distributed.rank_runs import corpus_dir as corpus_dir
from tests.train.distributed.rank_runs import large_recipe, open_task
from tests.train.ranks import outputs_of

from polyhead.data.readers.parallel_corpus import read_pairs
from polyhead.evaluate.metrics import KNOWN_METRICS, score_translations
from polyhead.train.tasks import translation
from polyhead.train.tasks.translation import translate_sources


@pytest.mark.acceptance("G5", "A6")
def test_translations_equal_one_process_in_order(corpus_dir, monkeypatch):
    monkeypatch.setattr(translation, "MAP_CHUNK_TOKENS", 50)
    recipe = large_recipe(corpus_dir, "translation")
    sources, references, _ = read_pairs(translation.open_split_corpus(recipe, "valid"))
    run, task = open_task(recipe)
    outputs = run.translate(sources)
    with torch.inference_mode():
        metrics = task.evaluate(run.model)
    assert metrics["bleu"] == score_translations(KNOWN_METRICS["bleu"], outputs, references, "en").value
    assert metrics["chrf"] == score_translations(KNOWN_METRICS["chrf"], outputs, references).value > 0
    sources[3] = ""
    expected = run.translate(sources)
    assert len(set(expected)) > 10 and expected[3] == ""
    assert translate_sources(run, sources, map) == expected
    results = outputs_of(3, lambda ranks: translate_sources(open_task(recipe)[0], sources, ranks.map))
    assert results == [expected] * 3
