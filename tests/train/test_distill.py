"""Learning from a teacher: the losses by their formulas, a student that follows it, and the report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.train.conftest import Notes, small_recipe, write_corpus

import polyhead as ph
from polyhead.config.config_sections import DistillConfig
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.train.distill import DistillationTask, kd_loss, load_teachers, make_distillation_task
from polyhead.train.init_from import load_init_weights
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import TranslationTask

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def place(unsynced: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("distill")
    write_corpus(directory, n=120)
    model = {"d_model": 32, "n_layers": 2, "d_ff": 64, "dropout": 0.0}
    recipe = small_recipe(directory, "teacher", steps=150, max_tokens=200, accumulate=1, lr=1e-2, ema=None,
        model=model,
                          eval_every=50, save_every=50)  # fmt: skip
    run_training(recipe, report=Notes())
    return directory


def student(place: Path, out: str, **changes: Any) -> Recipe:
    whole = small_recipe(place, out).model_dump(mode="json")
    del whole["tokenizer"]
    settings = {
        "steps": 60,
        "max_tokens": 200,
        "accumulate": 1,
        "lr": 5e-3,
        "ema": None,
        "label_smoothing": 0.0,
    }
    start = {"run": str(place / "teacher"), "layer_stride": 2}
    return Recipe.model_validate(
        {**whole, "model": {}, "init_from": start, "train": whole["train"] | settings | changes.pop("train",
            {}),
         "distill": {"teacher": str(place / "teacher"), **changes}}
    )  # fmt: skip


def taught(task: Any, recipe: Recipe) -> DistillationTask:
    return make_distillation_task(task, recipe, load_teachers(recipe.distill), task.tokenizer)


def test_softened_is_the_divergence_at_a_temperature() -> None:
    torch.manual_seed(0)
    q, p = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    wanted = 0.0
    for row in range(5):
        a, b = (p[row] / 3).exp(), (q[row] / 3).exp()
        a, b = a / a.sum(), b / b.sum()
        wanted += float((a * (a / b).log()).sum()) * 9
    assert float(kd_loss(q, p, 3.0)) == pytest.approx(wanted, rel=1e-5)
    assert float(kd_loss(p, p, 3.0)) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("weight", ["logits_weight", "labels_weight", "hidden_weight"])
def test_each_part_of_the_loss_stands_for_itself(place: Path, weight: str) -> None:
    recipe, teacher = student(place, "unused"), ph.load(place / "teacher")
    task = TranslationTask.open(recipe, teacher.tokenizer, Notes())
    section = DistillConfig(
        teacher=[str(place / "teacher")],
        **({"logits_weight": 0.0, "labels_weight": 0.0, "hidden_weight": 0.0} | {weight: 2.0}),
    )
    wrapped = taught(task, recipe.model_copy(update={"distill": section}))
    model = build(teacher.config, seed=5)
    batch = task.collate(task.epoch_batches(0)[0])
    loss, asked = wrapped.loss(model, wrapped.collate(task.epoch_batches(0)[0])), batch.labels >= 0
    with torch.no_grad():
        f, g = (
            m.features(batch.source, batch.target, batch.source_pos, batch.target_pos)[asked]
            for m in (model, teacher.model)
        )
    log_p = model.head(f).log_softmax(-1)
    nll = -log_p.gather(1, batch.labels[asked][:, None]).sum()
    cosine = (f * g).sum(-1) / f.norm(dim=-1) / g.norm(dim=-1)
    wanted = {
        "labels_weight": nll,
        "logits_weight": kd_loss(model.head(f), teacher.model.head(g), 2.0),
        "hidden_weight": len(f) * (1 - cosine).mean(),
    }[weight]
    torch.testing.assert_close(loss.total, 2 * wanted, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(loss.nll, nll, rtol=1e-4, atol=1e-3)
    loss.total.backward()
    assert all(p.grad is None for p in wrapped.teachers[0].run.model.parameters())


def test_models_of_one_tokenizer_may_have_differently_many_rows(place: Path) -> None:
    """What stands for no token of both is left out before the probabilities are taken."""
    recipe, teacher = student(place, "unused"), ph.load(place / "teacher")
    task = TranslationTask.open(recipe, teacher.tokenizer, Notes())
    models = [
        build(teacher.config.model_copy(update={"vocab_size": 280 + more}), seed=more) for more in (8, 3, 5)
    ]
    runs = [Run(model, teacher.tokenizer, teacher.generation) for model in models[1:]]
    section = DistillConfig(
        teacher=["a", "b"], logits_weight=1.0, labels_weight=0.0, hidden_weight=0.0, temperature=2.0
    )
    wrapped = make_distillation_task(
        task, recipe.model_copy(update={"distill": section}), runs, teacher.tokenizer
    )
    batch = task.collate(task.epoch_batches(0)[0])
    asked = batch.labels >= 0
    with torch.no_grad():
        found = wrapped.loss(models[0], wrapped.collate(task.epoch_batches(0)[0])).total
        own, *theirs = (
            m.head(m.features(batch.source, batch.target, batch.source_pos, batch.target_pos)[asked])[:, :283]
            for m in models
        )
    mean = torch.stack([x.softmax(-1) for x in theirs]).mean(0).log()
    torch.testing.assert_close(found, kd_loss(own, mean, 2.0), rtol=1e-4, atol=1e-3)


def test_a_student_follows_its_teacher_and_the_card_says_how_far(place: Path) -> None:
    run, _ = run_training(student(place, "student", hidden_weight=1.0), report=Notes())
    teacher = ph.load(place / "teacher")
    card = (place / "student/README.md").read_text()
    sizes = [sum(p.numel() for p in one.model.parameters()) for one in (run, teacher)]
    assert f"{sizes[0]:,}, the teacher's {sizes[1]:,}: {1 - sizes[0] / sizes[1]:.0%} smaller" in card
    assert "times the teacher's on the validation text" in card
    assert "valid loss, compared with the teacher's" in card
    task = TranslationTask.open(student(place, "unused"), teacher.tokenizer, Notes())
    batch = task.collate(task.epoch_batches(0)[0])
    begun = build(run.config, seed=1)
    load_init_weights(begun, teacher, 2)
    with torch.no_grad():
        wanted, before, after = (
            task.compute_logits(model.eval(), batch) for model in (teacher.model, begun, run.model)
        )
    far, near = (float(kd_loss(said.logits, wanted.logits, 1.0)) for said in (before, after))
    assert near < far / 4
    cosines = [
        torch.cosine_similarity(said.hidden_states, wanted.hidden_states, dim=-1).mean()
        for said in (before, after)
    ]
    assert cosines[1] > cosines[0] + 0.2


def test_of_several_teachers_the_mean_is_taught(place: Path) -> None:
    """Numbers by the formula, with sizes that differ; and the card tells of each."""
    whole = small_recipe(place, "second").model_dump(mode="json")
    del whole["tokenizer"]
    begun = {"run": str(place / "teacher"), "layer_stride": 2}
    run_training(
        Recipe.model_validate(
            {**whole, "model": {}, "init_from": begun, "train": whole["train"] | {"steps": 4}}
        ),
        report=Notes(),
    )
    names = [str(place / name) for name in ("teacher", "second")]
    recipe, teachers = (
        student(place, "of-two", teacher=names, train={"eval_bleu": True}),
        [ph.load(name) for name in names],
    )
    assert recipe.distill is not None
    task = TranslationTask.open(recipe, teachers[0].tokenizer, Notes())
    only = recipe.distill.model_copy(update={"labels_weight": 0.0, "temperature": 3.0})
    wrapped = taught(task, recipe.model_copy(update={"distill": only}))
    model = build(teachers[0].config, seed=5)
    batch = task.collate(task.epoch_batches(0)[0])
    asked = batch.labels >= 0
    with torch.no_grad():
        given = (batch.source, batch.target, batch.source_pos, batch.target_pos)
        p, q, own = (one(*given)[asked].double().softmax(-1) for one in (*(t.model for t in teachers), model))
        wanted = ((p + q) / 2) ** (1 / 3) / (((p + q) / 2) ** (1 / 3)).sum(-1, keepdim=True)
        said = own ** (1 / 3) / (own ** (1 / 3)).sum(-1, keepdim=True)
    divergence = 9 * (wanted * (wanted / said).log()).sum()
    loss = wrapped.loss(model, wrapped.collate(task.epoch_batches(0)[0]))
    assert float(loss.total.detach()) == pytest.approx(float(divergence), rel=1e-4)
    assert float((p - q).abs().max()) > 0.1

    run_training(
        recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": 4})}), report=Notes()
    )
    card = (place / "of-two/README.md").read_text()
    both = sum(x.numel() for t in teachers for x in t.model.parameters())
    assert f"the teachers' {both:,}: " in card
    losses = [task.evaluate(t.model)["loss"] for t in teachers]
    assert f" and {losses[0]:.4f}, {losses[1]:.4f}" in card
    kept = re.search(
        r"valid bleu, compared with the teachers'.* ([\d.]+) and ([\d.]+), ([\d.]+): ([\d.]+)% kept", card
    )
    assert kept is not None
    own_bleu, first, second, share = map(float, kept.groups())
    assert first != second
    assert share == pytest.approx(100 * own_bleu / max(first, second), abs=0.1)
    with pytest.raises(UserError, match="supports one teacher, but here are 2"):
        taught(task, recipe.model_copy(update={"distill": only.model_copy(update={"hidden_weight": 1.0})}))


def test_a_student_with_no_labels_learns_from_the_teacher_alone(place: Path) -> None:
    """Towards the teacher's probabilities, however wrong they are: those of one that learned nothing."""
    recipe = student(place, "blind", labels_weight=0.0)
    teacher = ph.load(place / "teacher")
    task = TranslationTask.open(recipe, teacher.tokenizer, Notes())
    fool = build(teacher.config, seed=9)
    wrapped = taught(task, recipe)
    wrapped.teachers[0].run.model = fool.eval()
    model = build(teacher.config, seed=10)
    batch = wrapped.collate(task.epoch_batches(0)[0])
    before = float(wrapped.loss(model, batch).total.detach())
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        wrapped.loss(model, batch).total.backward()
        optimizer.step()
    assert float(wrapped.loss(model, batch).total.detach()) < before / 4


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_teachers_of_another_kind_are_refused(place: Path, kind: str) -> None:
    recipe, teacher = student(place, "unused"), ph.load(place / "teacher")
    task = TranslationTask.open(recipe, teacher.tokenizer, Notes())
    other = build(teacher.config.model_copy(update={"kind": kind}), seed=1)
    section = DistillConfig(teacher=["teach"])
    said = f"teach is of kind '{kind}', but task 'translation' trains 'encoder-decoder'"
    with pytest.raises(UserError, match=f"^distill.teacher: {said}$"):
        make_distillation_task(
            task,
            recipe.model_copy(update={"distill": section}),
            [Run(other, teacher.tokenizer, teacher.generation)],
            teacher.tokenizer,
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lm_head": False}, "teach outputs only embeddings, no probabilities to learn from"),
        (
            {"labels": ("a", "b"), "pooling": Choice("mean"), "lm_head": False},
            "the classes of teach are a, b, not none",
        ),
    ],
)
def test_teachers_that_say_no_tokens_are_refused(place: Path, changes: dict[str, Any], said: str) -> None:
    teacher = ph.load(place / "teacher")
    recipe = Recipe.model_validate(
        {
            "task": "masked-lm",
            "data": {"train": "a", "valid": "b"},
            "train": {"steps": 1},
            "distill": {"teacher": "teach"},
        }
    )
    config = teacher.config.model_copy(update={"kind": "encoder", **changes})
    task: Any = Mock(labels=())
    with pytest.raises(UserError, match=f"^distill.teacher: {said}$"):
        make_distillation_task(
            task, recipe, [Run(build(config, 1), teacher.tokenizer, teacher.generation)], teacher.tokenizer
        )


def test_a_teacher_that_cannot_read_so_far_is_named(place: Path, tmp_path: Path) -> None:
    teacher = ph.load(place / "teacher")
    config = teacher.config.model_copy(update={"position": Choice("learned"), "max_len": 4})
    Run(build(config, 1), teacher.tokenizer, teacher.generation).save(tmp_path / "short")
    recipe = student(place, "far", teacher=[str(place / "teacher"), str(tmp_path / "short")])
    said = rf"^distill\.teacher {tmp_path / 'short'}: \d+ positions, but this model has only max_len=4$"
    with pytest.raises(UserError, match=said):
        run_training(recipe, report=Notes())


def test_another_tokenizer_and_another_width_are_refused(place: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path)
    run_training(small_recipe(tmp_path, "other", steps=7, tokenizer={"vocab_size": 270}), report=Notes())
    with pytest.raises(
        UserError, match=r"another tokenizer than the student; initialize from it \(init_from: ...\), or gen"
    ):
        run_training(
            student(place, "no").model_copy(
                update={"distill": DistillConfig(teacher=[str(tmp_path / "other")])}
            ),
            report=Notes(),
        )
    small = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_len": 32}
    plain = small_recipe(place, "narrow", model=small, tokenizer={"vocab_size": 280})
    with pytest.raises(UserError, match="student has 16, the teacher 32"):
        run_training(
            plain.model_copy(
                update={"distill": DistillConfig(teacher=[str(place / "teacher")], hidden_weight=1.0)}
            ),
            report=Notes(),
        )
