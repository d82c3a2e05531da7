from collections import Counter

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe

from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_run


@pytest.mark.usefixtures("no_fsync")
def test_accuracy_by_class_is_that_of_classify(corpus_dir):
    recipe = task_recipe(corpus_dir, "classification", corpus_dir / "run", steps=12)
    run, _ = run_training(recipe, report=Notes())
    rows = [line.split("\t") for line in (corpus_dir / "valid.tsv").read_text().splitlines()[1:]]
    labels = [label for _, label in rows]
    predicted_labels = [result.label for result in run.classify([text for text, _ in rows])]
    counts = Counter(zip(labels, predicted_labels, strict=True))
    samples = read_run(recipe.out).samples
    for group in samples.breakdowns[0].groups:
        size = labels.count(group.name)
        assert (group.size, group.value) == (size, pytest.approx(100 * counts[group.name, group.name] / size))
    expected = [[counts[row, column] for column in ("cold", "warm")] for row in ("cold", "warm")]
    assert samples.confusion.counts == expected
    n_wrong = expected[0][1] + expected[1][0]
    examples = [example for example in samples.examples if example["output"] != example["reference"]]
    assert len(examples) <= n_wrong and len(examples) >= min(n_wrong, 24)
