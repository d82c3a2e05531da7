import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import Notes, small_recipe, user_error, with_data, with_train
from tests.train.distributed.rank_runs import open_task, read_result

from polyhead.config.corpora import CorpusConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.estimate.inputs import open_data_sample
from polyhead.introspect.compute_attention import record_attention
from polyhead.introspect.word_alignment import score_batch
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.tasks.common import seq2seq_loss
from polyhead.train.tasks.translation import TranslationTask

WEIGHT = 0.5


@pytest.fixture
def recipe(corpus_dir) -> Recipe:
    """Every word is linked with the one at the same place; each third pair has no links."""
    sides = [(corpus_dir / f"train.{side}").read_text().splitlines() for side in ("de", "en")]
    lines = []
    for number, pair in enumerate(zip(*sides, strict=True)):
        n_words = min(len(text.split()) for text in pair)
        lines.append(" ".join(f"{i}-{i}" for i in range(n_words)) if number % 3 else "")
    (corpus_dir / "train.align").write_text("".join(f"{line}\n" for line in lines))
    intervals = {"save_every": 2, "eval_every": 2}
    return guide(
        small_recipe(corpus_dir, "guided", steps=4, model={"n_layers": 3, "dropout": 0.0}, **intervals)
    )


def guide(recipe: Recipe, **options: float) -> Recipe:
    body = recipe.model_dump(mode="json")
    body["data"]["alignments"] = "train.align"
    body["task"] = {"name": "translation", "alignment_weight": WEIGHT} | options
    return Recipe.model_validate(body)


def number_words(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The number of each token's word, -1 for a space alone: no token is in two words."""
    texts = [tokenizer.decode([ids[:n]])[0] for n in range(len(ids) + 1)]
    return [len(texts[n + 1].split()) - 1 if texts[n + 1][-1] != " " else -1 for n in range(len(ids))]


def test_loss_adds_cross_entropy_of_linked_tokens(recipe):
    run, task = open_task(recipe)
    batch = task.collate(task.epoch_batches(0)[0])
    numbers = task.train.line_numbers[task.epoch_batches(0)[0].rows]
    with record_attention(run.model, ".cross") as weights_by_name:
        plain = seq2seq_loss(run.model, batch, recipe.train.label_smoothing or 0.1)
    layers = [passes[0] for passes in weights_by_name.values()]
    assert len(layers) == recipe.model.n_layers > 1
    expected = 0.0
    lines = (recipe.data.root / "train.align").read_text().splitlines()
    for row, number in enumerate(numbers):
        words = []
        for ids, decode in ((batch.source, run.tokenizer), (batch.labels, run.tokenizer)):
            tokens = [i for i in ids[row].tolist() if i not in (-100, decode.pad_id, decode.eos_id)]
            words.append(number_words(decode, tokens))
        links = {tuple(map(int, link.split("-"))) for link in lines[number - 1].split()}
        for t, target_word in enumerate(words[1]):
            linked = [s for s, source_word in enumerate(words[0]) if (source_word, target_word) in links]
            for s in linked:
                expected -= float(layers[-2][row, 0, t, s].log()) / len(linked)
    loss = task.loss(run.model, batch)
    assert float((loss.total - plain.total).detach()) == pytest.approx(WEIGHT * expected, rel=1e-5)
    assert expected > 0
    assert (loss.count, float(loss.nll)) == (plain.count, pytest.approx(float(plain.nll)))
    loss.total.backward()
    q_proj = run.model.get_submodule([*weights_by_name][-2]).q_proj.weight
    assert q_proj.grad is not None and q_proj.grad.abs().sum() > 0


def test_alignments_are_those_of_the_head(recipe):
    run, _ = open_task(recipe)
    text, target = (recipe.data.root / "valid.de").read_text().splitlines()[0], "red dog"
    (ids,), (target_ids,) = run.tokenizer.encode([text]), run.tokenizer.encode([target])
    template = run.tokenizer.seq2seq_template
    with record_attention(run.model, ".cross") as weights_by_name:
        score_batch(run.model, run.tokenizer, template, [ids], [target_ids], None)
    weights = [*weights_by_name.values()][-2][0][0, 0, : len(target_ids), : len(ids)].double().numpy()
    found = score_batch(run.model, run.tokenizer, template, [ids], [target_ids], None, True)[1]
    np.testing.assert_allclose(found[0, : len(target_ids), : len(ids)], weights, atol=1e-6)
    columns, rows = number_words(run.tokenizer, ids), number_words(run.tokenizer, target_ids)
    sums = np.zeros((2, max(columns) + 1))
    for t, s in np.ndindex(len(target_ids), len(ids)):
        if min(rows[t], columns[s]) >= 0:
            sums[rows[t], columns[s]] += weights[t, s]
    assert run.align_pairs([text], [target])[0].alignment == [(sums[j].argmax(), j) for j in range(2)]


def test_training_resumes_exactly_and_estimate_reads_no_links(recipe, tmp_path):
    run_training(recipe, report=Notes())
    whole = read_result(recipe.out)["final"]
    half = recipe.model_copy(update={"out": tmp_path / "half"})
    run_training(with_train(half, steps=2), report=Notes())
    run_training(half, report=Notes(), resume=True)
    for name, tensor in load_file(half.out / "model.safetensors").items():
        assert torch.equal(tensor, whole[name]), name
    sample = open_data_sample(recipe, None, tmp_path / "sample")
    assert sample.task.links is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[1:], "data.alignments: train.align has"),
        (lambda lines: [*lines[:-1], "0-99"], "the link 0-99 is out of range: the source has"),
        (lambda lines: [*lines[:-1], "0:1"], "'0:1' is no link; expected two word numbers"),
    ],
)
def test_bad_links_are_refused(recipe, change, message):
    path = recipe.data.root / "train.align"
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))
    with pytest.raises(UserError, match=message):
        open_task(recipe)


def test_settings_that_do_not_fit_are_refused(recipe):
    data = recipe.data
    for changed, message in [
        (guide(recipe, token_split=0.1), "token_split cannot be combined"),
        (with_data(recipe, train=[CorpusConfig(name="a", files=[*data.train])]), "requires data.train="),
        (with_data(recipe, alignments=None), "alignment_weight requires data.alignments"),
        (with_data(recipe, alignments="train.alig"), "no file 'train.alig'"),
        (with_train(recipe, recompute="blocks"), "data.alignments and train.recompute"),
    ]:
        with user_error(message):
            TranslationTask.check(changed)
    body = recipe.model_dump(mode="json") | {"task": {"name": "denoising"}, "generation": {}}
    with pytest.raises(ValueError, match=r"data\.alignments is for task translation, not 'denoising'"):
        Recipe.model_validate(body)
