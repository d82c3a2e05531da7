import pytest
import torch
import torch.nn.functional as F
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe

import polyhead as ph
from polyhead.core.registry import TASK
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_run


@pytest.mark.usefixtures("no_fsync")
def test_loss_by_position_averages_to_row_loss(corpus_dir):
    recipe = task_recipe(corpus_dir, "chat", corpus_dir / "run")
    run, _ = run_training(recipe, report=Notes())
    task = TASK.get("chat").open(recipe, run.tokenizer, Notes())
    rows = torch.linspace(0, len(task.valid) - 1, 8).long().unique().numpy()
    batch = task.valid.collate(rows, run.tokenizer.pad_id)
    with torch.inference_mode():
        logits = run.model(batch.tokens, batch.pos).flatten(0, 1)
    expected = float(F.cross_entropy(logits, batch.labels.flatten(), ignore_index=-100))
    breakdowns = read_run(recipe.out).samples.breakdowns
    assert breakdowns
    for breakdown in breakdowns:
        total = sum(group.size for group in breakdown.groups)
        mean = sum(group.size * group.value for group in breakdown.groups) / total
        assert mean == pytest.approx(expected, rel=1e-4)


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
