import re

import pytest
import torch
from tests.train.conftest import Notes, user_error, with_data, with_train
from tests.train.tasks.classification_helpers import corpus_dir as corpus_dir
from tests.train.tasks.classification_helpers import recipe
from tests.train.tasks.classification_helpers import trained_run as trained_run

import polyhead as ph
from polyhead import build
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.train.distill import load_teachers, make_distillation_task
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.usefixtures("no_report")
TASK_CONFIG = {"name": "classification", "token_dropout": 0.5}


@pytest.fixture(scope="module")
def teachers(corpus_dir, trained_run):
    options = {"model": {"max_len": 16, "n_segments": 2}, "train": {"steps": 30, "save_every": 30}}
    sections = recipe(corpus_dir, "chars", **options).model_dump(mode="json")
    run_training(Recipe.model_validate(sections | {"tokenizer": {"kind": "char"}}), report=Notes())
    return [trained_run[0], corpus_dir / "chars"]


@pytest.fixture
def tokenizer(teachers):
    return ph.load(teachers[0]).tokenizer


def student_recipe(corpus_dir, names, out="student", **changes) -> Recipe:
    distill = {"teacher": [str(name) for name in names], "temperature": 3.0, "labels_weight": 0.25}
    sections = recipe(corpus_dir, out, task=TASK_CONFIG, train={"steps": 12}).model_dump(mode="json")
    return Recipe.model_validate(sections | {"distill": distill | changes})


def open_tasks(recipe, tokenizer):
    task = TASK.get("classification").open(recipe, tokenizer, Notes())
    return task, make_distillation_task(task, recipe, load_teachers(recipe.distill), tokenizer)


def read_accuracy(run_dir) -> str:
    return re.search(r"valid accuracy \| ([\d.]+)", (run_dir / "README.md").read_text())[1]


def test_teacher_reads_texts_in_its_own_tokens(corpus_dir, teachers, tokenizer):
    """As classify() does with the lines of the file; token dropout hides nothing from it."""
    recipe = student_recipe(corpus_dir, teachers[1:])
    task, kd_task = open_tasks(recipe, tokenizer)
    assert kd_task.teachers[0].run.tokenizer.sha256 != tokenizer.sha256
    lines = [line.split("\t") for line in (corpus_dir / "train.tsv").read_text().splitlines()[1:]]
    model = build(recipe.model.with_vocabulary(tokenizer.vocab_size, task.labels), seed=5).eval()
    for rows in kd_task.epoch_batches(0)[:3]:
        torch.manual_seed(8)
        batch = kd_task.collate(rows)
        torch.manual_seed(8)
        plain = task.collate(rows)
        torch.testing.assert_close(batch.student.inputs.tokens, plain.inputs.tokens)  # the same dropout
        results = ph.load(teachers[1]).classify([lines[row][1] for row in rows])
        p = torch.tensor([[r.probabilities[label] for label in task.labels] for r in results]).double()
        with torch.no_grad():
            q = task.compute_logits(model, plain).logits.double().softmax(-1)
        soft_p, soft_q = ((x ** (1 / 3)) / (x ** (1 / 3)).sum(-1, keepdim=True) for x in (p, q))
        nll = -q.gather(1, torch.tensor([[task.labels.index(lines[row][0])] for row in rows])).log().sum()
        expected = 9 * (soft_p * (soft_p / soft_q).log()).sum() + 0.25 * nll
        loss = kd_task.loss(model, batch)
        assert float(loss.total.detach()) == pytest.approx(float(expected), rel=1e-4)
        assert float(loss.nll.detach()) == pytest.approx(float(nll), rel=1e-4)
        assert loss.count == kd_task.count_labels(batch) == len(rows)


def test_teacher_of_same_tokenizer_reads_dropped_tokens(corpus_dir, teachers, tokenizer):
    task, kd_task = open_tasks(student_recipe(corpus_dir, teachers), tokenizer)
    batch = kd_task.collate(task.epoch_batches(0)[0])
    assert batch.teachers[0] is batch.student
    is_masked = [(inputs.inputs.tokens == tokenizer.mask_id).any() for inputs in batch.teachers]
    assert is_masked == [True, False]


def test_card_compares_with_each_teacher(corpus_dir, teachers):
    with user_error(r"another tokenizer .* or set distill\.hidden_weight=0"):
        run_training(student_recipe(corpus_dir, teachers[1:], "none", hidden_weight=1.0), report=Notes())
    run, _ = run_training(student_recipe(corpus_dir, teachers), report=Notes())
    assert run.tokenizer.vocab_size == 300
    card = (run.recipe.out / "README.md").read_text()
    expected = tuple(map(read_accuracy, teachers))
    pattern = r"valid accuracy, compared with the teachers' \| [\d.]+ and ([\d.]+), ([\d.]+)"
    assert re.findall(pattern, card) == [expected]
    assert expected[0] != expected[1]


def test_teacher_reads_up_to_its_own_max_len(corpus_dir, teachers, tokenizer):
    recipe = with_data(student_recipe(corpus_dir, teachers[1:]), max_len=6)
    _, kd_task = open_tasks(with_train(recipe, max_tokens=12), tokenizer)
    ((run, task),) = kd_task.teachers
    batches = [kd_task.collate(rows) for rows in kd_task.epoch_batches(0)]
    assert max(batch.student.inputs.tokens.size(1) for batch in batches) == 6
    assert max(batch.teachers[0].inputs.tokens.size(1) for batch in batches) == 16
    assert f"{task.evaluate(run.model)['accuracy']:.4f}" == read_accuracy(teachers[1])


def test_teacher_may_order_classes_differently(corpus_dir, teachers, tokenizer):
    reversed_run = ph.load(teachers[1])
    labels = reversed_run.config.labels[::-1]
    with torch.no_grad():
        for tensor in reversed_run.model.classifier.parameters():
            tensor.copy_(tensor.flip(0))
    reversed_run.model.config = reversed_run.config.model_copy(update={"labels": labels})
    reversed_run.save(corpus_dir / "reversed")
    results = []
    for name in (teachers[1], corpus_dir / "reversed"):
        recipe = student_recipe(corpus_dir, [name])
        task, kd_task = open_tasks(recipe, tokenizer)
        torch.manual_seed(8)
        batch = kd_task.collate(kd_task.epoch_batches(0)[0])
        model = build(recipe.model.with_vocabulary(tokenizer.vocab_size, task.labels), seed=5).eval()
        ((run, own_task),) = kd_task.teachers
        loss = float(kd_task.loss(model, batch).total.detach())
        results.append((loss, own_task.evaluate(run.model)["accuracy"]))
    assert results[0] == pytest.approx(results[1], rel=1e-5)
    other = ph.load(teachers[1])
    other.model.config = other.config.model_copy(update={"labels": ("x", *labels[1:])})
    other.save(corpus_dir / "other")
    with user_error(r"distill\.teacher: the classes of .*other are x, "):
        open_tasks(student_recipe(corpus_dir, [corpus_dir / "other"]), tokenizer)
