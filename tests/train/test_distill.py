import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tests.train.conftest import Notes, small_recipe, user_error, with_train, write_corpus

import polyhead as ph
from polyhead import Choice, build
from polyhead.config.config_sections import DistillConfig
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.train.distill import kd_loss, load_teachers, make_distillation_task
from polyhead.train.init_from import load_init_weights
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import TranslationTask

pytestmark = pytest.mark.usefixtures("no_report")
WEIGHTS = {"logits_weight": 0.0, "labels_weight": 0.0, "hidden_weight": 0.0}


@pytest.fixture(scope="module")
def workdir(no_report, tmp_path_factory):
    directory = tmp_path_factory.mktemp("distill")
    write_corpus(directory, n=120)
    model = {"d_model": 32, "n_layers": 2, "d_ff": 64, "dropout": 0.0}
    options = {"steps": 80, "max_tokens": 200, "accumulate": 1, "lr": 1e-2, "ema": None}
    intervals = {"eval_every": 40, "save_every": 40}
    run_training(small_recipe(directory, "teacher", model=model, **options, **intervals), report=Notes())
    return directory


@pytest.fixture
def teacher(workdir):
    return ph.load(workdir / "teacher")


def student_recipe(directory: Path, out: str, train=None, distill=None, **changes) -> Recipe:
    recipe = small_recipe(directory, out).model_dump(mode="json")
    del recipe["tokenizer"]
    options = {"steps": 60, "max_tokens": 200, "accumulate": 1, "lr": 5e-3, "ema": None}
    options |= {"label_smoothing": 0.0, "eval_every": 60, "save_every": 60} | (train or {})
    init_from = {"run": str(directory / "teacher"), "layer_stride": 2}
    distill = {"teacher": str(directory / "teacher"), **changes} if distill is None else distill
    sections = {"model": {}, "init_from": init_from, "train": recipe["train"] | options}
    return Recipe.model_validate({**recipe, **sections, **({"distill": distill} if distill else {})})


def distill_task(task, recipe, runs=None, **section):
    recipe = recipe.model_copy(update={"distill": DistillConfig(**section)}) if section else recipe
    return make_distillation_task(task, recipe, runs or load_teachers(recipe.distill), task.tokenizer)


def open_task(recipe, teacher):
    return TranslationTask.open(recipe, teacher.tokenizer, Notes())


def inputs_of(batch):
    return batch.source, batch.target, batch.source_pos, batch.target_pos


def test_kd_loss_is_the_divergence_at_a_temperature():
    torch.manual_seed(0)
    q, p = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    expected = 0.0
    for row in range(5):
        a, b = (p[row] / 3).exp(), (q[row] / 3).exp()
        a, b = a / a.sum(), b / b.sum()
        expected += float((a * (a / b).log()).sum()) * 9
    assert float(kd_loss(q, p, 3.0)) == pytest.approx(expected, rel=1e-5)
    assert float(kd_loss(p, p, 3.0)) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_each_part_of_the_loss(weight, workdir, teacher):
    recipe = student_recipe(workdir, "unused")
    task = open_task(recipe, teacher)
    kd_task = distill_task(task, recipe, teacher=[str(workdir / "teacher")], **WEIGHTS | {weight: 2.0})
    model = build(teacher.config, seed=5)
    batch = task.collate(task.epoch_batches(0)[0])
    loss, is_label = kd_task.loss(model, kd_task.collate(task.epoch_batches(0)[0])), batch.labels >= 0
    with torch.no_grad():
        f, g = (m.features(*inputs_of(batch))[is_label] for m in (model, teacher.model))
    nll = -model.head(f).log_softmax(-1).gather(1, batch.labels[is_label][:, None]).sum()
    cosine = (f * g).sum(-1) / f.norm(dim=-1) / g.norm(dim=-1)
    expected = {
        "labels_weight": nll,
        "logits_weight": kd_loss(model.head(f), teacher.model.head(g), 2.0),
        "hidden_weight": len(f) * (1 - cosine).mean(),
    }[weight]
    torch.testing.assert_close(loss.total, 2 * expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(loss.nll, nll, rtol=1e-4, atol=1e-3)
    loss.total.backward()
    assert all(p.grad is None for p in kd_task.teachers[0].run.model.parameters())


def test_models_may_have_different_vocabulary_sizes(workdir, teacher):
    """Rows that are tokens of only one of them are left out before the softmax."""
    recipe = student_recipe(workdir, "unused")
    task = open_task(recipe, teacher)
    sizes = {n: teacher.config.model_copy(update={"vocab_size": 280 + n}) for n in (8, 3, 5)}
    models = [build(config, seed=n) for n, config in sizes.items()]
    runs = [Run(model, teacher.tokenizer, teacher.generation) for model in models[1:]]
    section = WEIGHTS | {"logits_weight": 1.0, "temperature": 2.0}
    kd_task = distill_task(task, recipe, runs, teacher=["a", "b"], **section)
    batch = task.collate(task.epoch_batches(0)[0])
    is_label = batch.labels >= 0
    with torch.no_grad():
        actual = kd_task.loss(models[0], kd_task.collate(task.epoch_batches(0)[0])).total
        own_probs, *other_models = (m.head(m.features(*inputs_of(batch))[is_label])[:, :283] for m in models)
    mean = torch.stack([x.softmax(-1) for x in other_models]).mean(0).log()
    torch.testing.assert_close(actual, kd_loss(own_probs, mean, 2.0), rtol=1e-4, atol=1e-3)


def test_student_approaches_teacher_and_card_compares_them(workdir, teacher):
    run, _ = run_training(student_recipe(workdir, "student", hidden_weight=1.0), report=Notes())
    card = (workdir / "student/README.md").read_text()
    sizes = [sum(p.numel() for p in r.model.parameters()) for r in (run, teacher)]
    assert f"{sizes[0]:,}, the teacher's {sizes[1]:,}: {1 - sizes[0] / sizes[1]:.0%} smaller" in card
    assert "times the teacher's on the validation text" in card
    assert "valid loss, compared with the teacher's" in card
    task = open_task(student_recipe(workdir, "unused"), teacher)
    batch = task.collate(task.epoch_batches(0)[0])
    initial = build(run.config, seed=1)
    load_init_weights(initial, teacher, 2)
    models = [model.eval() for model in (teacher.model, initial, run.model)]
    with torch.no_grad():
        expected, *scores = (task.compute_logits(model, batch) for model in models)
    losses = [float(kd_loss(x.logits, expected.logits, 1.0)) for x in scores]
    assert losses[1] < losses[0] / 4
    states = [x.hidden_states for x in scores]
    cosines = [torch.cosine_similarity(x, expected.hidden_states, dim=-1).mean() for x in states]
    assert cosines[1] > cosines[0] + 0.2


def test_card_compares_with_several_teachers(workdir, teacher):
    run_training(student_recipe(workdir, "second", train={"steps": 4}, distill={}), report=Notes())
    names = [str(workdir / name) for name in ("teacher", "second")]
    recipe = student_recipe(workdir, "of-two", teacher=names, train={"eval_bleu": True})
    teachers, task = [ph.load(name) for name in names], open_task(recipe, teacher)
    run_training(with_train(recipe, steps=4), report=Notes())
    card = (workdir / "of-two/README.md").read_text()
    n_weights = sum(x.numel() for t in teachers for x in t.model.parameters())
    assert f"the teachers' {n_weights:,}: " in card
    losses = [task.evaluate(t.model)["loss"] for t in teachers]
    assert f" and {losses[0]:.4f}, {losses[1]:.4f}" in card
    pattern = r"valid bleu, compared with the teachers'.* ([\d.]+) and ([\d.]+), ([\d.]+): ([\d.]+)% kept"
    own_bleu, first, second, percent = map(float, re.search(pattern, card).groups())
    assert first != second
    assert percent == pytest.approx(100 * own_bleu / max(first, second), abs=0.1)
    with user_error("supports one teacher, but here are 2"):
        distill_task(task, recipe, teacher=names, hidden_weight=1.0)


CLASSES = {"labels": ("a", "b"), "pooling": Choice("mean"), "lm_head": False}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "decoder"}, "teach is of kind 'decoder', but task 'translation' trains 'encoder-decoder'"),
        ({"kind": "encoder"}, "teach is of kind 'encoder', but task 'translation' trains 'encoder-decoder'"),
        ({"kind": "encoder", "lm_head": False}, "teach outputs only embeddings, no probabilities to learn"),
        ({"kind": "encoder", **CLASSES}, "the classes of teach are a, b, not none"),
    ],
)
def test_unsuitable_teacher_is_refused(changes, message, workdir, teacher):
    other = build(teacher.config.model_copy(update=changes), seed=1)
    runs = [Run(other, teacher.tokenizer, teacher.generation)]
    recipe = student_recipe(workdir, "unused", teacher="teach")
    if len(changes) > 1:
        data, train = {"train": "a", "valid": "b"}, {"steps": 1}
        sections = {"task": "masked-lm", "data": data, "train": train, "distill": {"teacher": "teach"}}
        recipe = Recipe.model_validate(sections)
    with user_error(f"^distill.teacher: {message}"):
        make_distillation_task(Mock(labels=()), recipe, runs, teacher.tokenizer)


def test_other_tokenizer_width_or_length_is_refused(workdir, teacher, tmp_path):
    write_corpus(tmp_path)
    run_training(small_recipe(tmp_path, "other", steps=1, tokenizer={"vocab_size": 270}), report=Notes())
    config = teacher.config.model_copy(update={"position": Choice("learned"), "max_len": 4})
    Run(build(config, 1), teacher.tokenizer, teacher.generation).save(tmp_path / "short")
    other, short, wide = ([str(x)] for x in (tmp_path / "other", tmp_path / "short", workdir / "teacher"))
    section = DistillConfig(teacher=wide, hidden_weight=1.0)
    narrow_recipe = small_recipe(workdir, "narrow").model_copy(update={"distill": section})
    message = rf"^distill\.teacher {re.escape(short[0])}: \d+ positions, but this model has only max_len=4$"
    for recipe, error in (
        (student_recipe(workdir, "no", teacher=other), "another tokenizer than the student; initialize"),
        (narrow_recipe, "student has 16, the teacher 32"),
        (student_recipe(workdir, "far", teacher=wide + short), message),
    ):
        with user_error(error):
            run_training(recipe, report=Notes())
