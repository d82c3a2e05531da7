import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe

import polyhead as ph
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_run


@pytest.mark.usefixtures("no_fsync")
def test_examples_are_outputs_of_the_final_weights(corpus_dir):
    recipe = task_recipe(corpus_dir, "translation", corpus_dir / "run", ema=0.8, average_checkpoints=2)
    run_training(recipe, report=Notes())
    samples = read_run(recipe.out).samples
    sources, outputs = ([example[key] for example in samples.examples] for key in ("source", "output"))
    assert ph.load(recipe.out).translate(sources, beam_size=1, truncate=True) == outputs
    lengths = [len(source) for source in sources]
    assert lengths == sorted(lengths)
    assert sum(group.size for group in samples.breakdowns[0].groups) == len(sources)
