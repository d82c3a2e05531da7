import pytest
import torch
from sacrebleu.metrics import BLEU
from tests.train.conftest import with_data
from tests.train.distributed.rank_runs import corpus_dir as corpus_dir
from tests.train.distributed.rank_runs import large_recipe, open_task
from tests.train.ranks import outputs_of

from polyhead.cli.eval_metrics.translations import load_pairs
from polyhead.compare.significance import metric_statistics
from polyhead.core.errors import UserError
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


def test_scores_of_the_recipe_use_all_references(corpus_dir, monkeypatch):
    references = []
    for number in range(2):
        lines = (corpus_dir / "train.en").read_text().splitlines()
        references.append([" ".join(line.split()[number:] + ["x"] * number) for line in lines])
        (corpus_dir / f"test.en{number}").write_text("".join(f"{line}\n" for line in references[-1]))
    recipe = large_recipe(corpus_dir, "translation")
    files = [recipe.data.train[0], "test.en0", "test.en1"]
    recipe = with_data(recipe, valid=files, test=files)
    run, task = open_task(recipe)
    outputs = [references[row % 2][row].removesuffix(" x") for row in range(len(references[0]))]
    monkeypatch.setattr(translation, "translate_sources", lambda *args: outputs)
    bleu = BLEU(tokenize="13a").corpus_score(outputs, references).score
    assert bleu != pytest.approx(BLEU(tokenize="13a").corpus_score(outputs, references[:1]).score)
    facts = task.collect_facts(run)
    for split in ("valid", "test"):
        assert facts[f"{split} bleu"].startswith(f"{bleu:.2f} ±") and "nrefs:2" in facts[f"{split} bleu"]
    assert task.evaluate(run.model)["bleu"] == pytest.approx(bleu)
    texts = load_pairs(run, [], "test", None, {})[1]
    assert texts == [list(pair) for pair in zip(*references, strict=True)]
    statistics = metric_statistics(KNOWN_METRICS["bleu"], outputs, texts, "en")
    assert BLEU()._compute_score_from_stats(statistics.sum(0).tolist()).score == pytest.approx(bleu)
    with pytest.raises(UserError, match="a source and a target file, got 3"):
        open_task(with_data(recipe, train=files))
    (corpus_dir / "test.en1").write_text("one\n")
    with pytest.raises(UserError, match=r"test\.en1 has 1"):
        open_task(recipe)
