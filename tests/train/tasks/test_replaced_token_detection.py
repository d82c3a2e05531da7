"""Replaced tokens: what the encoder is asked, what it learns of it, and who takes the encoder."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
import transformers
from tests.train.conftest import Notes
from tests.train.tasks.test_masked import place, recipe  # noqa: F401
from tests.train.test_resume import KILLED, Deadly, in_child, result
from torch import Tensor

import polyhead as ph
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.models import Classifier, ReplacedTokenDetector
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.tasks.replaced_token_detection import GeneratorBatch, ReplacedTokenDetectionTask

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unsynced")]


def replaced(place: Path, out: str, *, steps: int = 30, **changes: Any) -> Recipe:  # noqa: F811
    model = {"generator_layers": 1} | changes.pop("model", {})
    return recipe(place, out, steps=steps, **{"task": "replaced-token-detection", "model": model} | changes)


def opened(made: Recipe) -> tuple[ReplacedTokenDetectionTask, ReplacedTokenDetector]:
    """The task, and a new model for it."""
    tokenizer = train_tokenizer(
        ReplacedTokenDetectionTask.iter_texts(made), made.tokenizer.kind, made.tokenizer.vocab_size
    )
    task = TASK.get("replaced-token-detection").open(made, tokenizer, Notes())
    return task, ph.build(made.model.with_vocabulary(tokenizer.vocab_size), 1).eval()


def asked(
    task: ReplacedTokenDetectionTask, model: ReplacedTokenDetector, batch: GeneratorBatch
) -> tuple[Tensor, Tensor, Tensor]:
    """The text, what the generator makes of it token by token, and where something is there."""
    tokens, pos, labels = batch.masked
    text, drawn = torch.where(labels == -100, tokens, labels), tokens.clone()
    p = model.generator(tokens, pos).double().softmax(-1)
    for row, at in (labels != -100).nonzero().tolist():
        passed, token = 0.0, -1
        while passed <= float(batch.uniform_draws[row, at]):
            token += 1
            passed += float(p[row, at, token])
        drawn[row, at] = token
    return text, drawn, torch.ones_like(tokens, dtype=torch.bool) if pos is None else pos >= 0


@pytest.mark.parametrize("width", [16, 32])
@torch.no_grad()
def test_the_loss_is_that_of_the_paper(place: Path, width: int) -> None:  # noqa: F811
    """Token by token: cross-entropy of what is hidden, and for every token whether it is the text's own."""
    made = replaced(
        place,
        "x",
        task={"name": "replaced-token-detection", "weight": 20.0, "mask": 0.3},
        data={"max_len": width},
    )
    task, model = opened(made)
    batch = task.collate(task.epoch_batches(0)[0])
    text, drawn, there = asked(task, model, batch)
    labels = batch.masked.labels
    scores = model.generator(batch.masked.tokens, batch.masked.pos)
    hidden = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=-100)
    logits = model(drawn, batch.masked.pos)
    right = torch.where(drawn == text, torch.sigmoid(-logits), torch.sigmoid(logits))
    loss = task.loss(model, batch)
    assert loss.count == int((labels != -100).sum())
    assert loss.nll.item() == pytest.approx(hidden.item(), rel=1e-5)
    wanted = hidden - 20.0 * 0.3 * right[there].log().sum()
    assert loss.total.item() == pytest.approx(wanted.item(), rel=1e-5)
    # with the share as it is, the mean of both is that of the equation
    share = loss.count / int((text[there] >= 5).sum())
    assert share == pytest.approx(0.3, abs=0.03)


def test_the_encoder_learns_to_tell_them(place: Path) -> None:  # noqa: F811
    """A generator that says anything, as it never learned: neighbours tell what does not belong."""
    notes = Notes()
    model = {"d_model": 32, "n_layers": 2, "dropout": 0.0, "position": "rope", "tie_embeddings": "none"}
    train = {"log_every": 50, "eval_every": 150, "save_every": 150, "max_tokens": 512, "lr": 5e-3}
    made = replaced(place, "told", steps=150, model=model, train=train | {"freeze": ["generator"]})
    run_training(made, report=notes)
    last = [row for row in notes.rows if row["split"] == "valid"][-1]
    assert last["f1"] > 0.9
    # of which nats the share of replaced tokens alone would have 50 times 0.4
    assert last["loss"] - math.log(last["ppl"]) < 50 * 0.1
    assert f"valid F1 of replaced tokens: {last['f1']:.4f}" in notes.said
    run = ph.load(made.out)
    row = torch.tensor([[run.tokenizer.bos_id, *run.tokenizer.encode(["bcdefcha"])[0], run.tokenizer.eos_id]])
    assert run.model(row)[0].argmax() == 1 + "bcdefcha".index("c", 2)


def test_a_killed_run_ends_with_the_same_bits(place: Path) -> None:  # noqa: F811
    whole, killed = replaced(place, "whole"), replaced(place, "killed")
    assert in_child(lambda: run_training(whole, report=Notes())) == 0
    assert in_child(lambda: run_training(killed, report=Deadly(18))) == KILLED
    assert in_child(lambda: run_training(killed, resume=True, report=Notes())) == 0
    assert result(killed) == result(whole)


def test_a_classifier_begins_with_the_encoder(place: Path) -> None:  # noqa: F811
    made = replaced(place, "read", steps=3)
    run_training(made, report=Notes())
    read, notes = ph.load(made.out), Notes()
    start, train = {"run": str(made.out)}, made.train.model_dump() | {"steps": 1, "lr": 1e-12, "ema": None}
    labelled = {"train": ["letters.tsv"], "text": "letters", "label": "label", "document_separator": "file"}
    wanted = {"task": "classification", "init_from": start, "train": train, "out": place / "classes"}
    run_training(Recipe.model_validate(wanted | {"data": made.data.model_dump() | labelled}), report=notes)
    classes = ph.load(place / "classes").model
    assert isinstance(classes, Classifier) and classes.config.generator_layers == 0
    for name, tensor in read.model.encoder.state_dict().items():
        torch.testing.assert_close(classes.encoder.state_dict()[name], tensor, atol=1e-6, rtol=0)
    assert any(
        line.endswith("; new: classifier, pooler; unused: detector, detector_transform, generator")
        for line in notes.said
    )


def test_it_goes_on_with_its_generator(place: Path) -> None:  # noqa: F811
    made, notes = replaced(place, "before", steps=3), Notes()
    run_training(made, report=Notes())
    fields = made.model_dump(exclude={"tokenizer", "model", "out"}, exclude_unset=True)
    more = fields | {
        "init_from": {"run": str(made.out)},
        "model": {"generator_layers": 1},
        "out": place / "behind",
    }
    run_training(Recipe.model_validate(more), report=notes)
    assert any(re.search(r"initialized (\d+) of \1 weights$", line) for line in notes.said)


@pytest.mark.parametrize("width", [None, 8])
def test_it_begins_with_an_encoder_that_fills_masks_and_the_other_way_round(
    place: Path,  # noqa: F811
    width: int | None,
) -> None:
    """The encoder is taken, as wide as its embeddings may be; what stands on it is new."""
    train = {"lr": 1e-12, "ema": None}
    masked = recipe(place, f"masked{width}", steps=2, model={"d_embedding": width}, train=train)
    run_training(masked, report=Notes())
    told = replaced(place, f"told{width}", steps=2, model={"d_embedding": width}, train=train)
    run_training(told, report=Notes())
    for before, task, generator in ((masked, "replaced-token-detection", 1), (told, "masked-lm", 0)):
        fields = before.model_dump(exclude={"tokenizer", "model", "out", "task"}, exclude_unset=True)
        more = {"init_from": {"run": str(before.out)}, "model": {"generator_layers": generator}, "task": task}
        out = place / f"{task}{width}"
        run_training(Recipe.model_validate(fields | more | {"out": out}), report=Notes())
        was, now = ph.load(before.out).model, ph.load(out).model
        for name, tensor in was.encoder.state_dict().items():
            torch.testing.assert_close(now.encoder.state_dict()[name], tensor, atol=1e-6, rtol=0)


def test_smoothing_is_the_generators(place: Path) -> None:  # noqa: F811
    """As masked-lm smooths what it says; what is told stays as it is."""
    task, model = opened(replaced(place, "x", train={"label_smoothing": 0.1}))
    batch = task.collate(task.epoch_batches(0)[0])
    task.weight = 0.0
    labels = batch.masked.labels.flatten()
    scores = model.generator(batch.masked.tokens, batch.masked.pos).flatten(0, 1)
    wanted = F.cross_entropy(scores, labels, reduction="sum", ignore_index=-100, label_smoothing=0.1)
    assert task.loss(model, batch).total.item() == pytest.approx(wanted.item(), rel=1e-5)


def test_chance_follows_from_seed_epoch_and_row(place: Path) -> None:  # noqa: F811
    def chances(seed: int, epoch: int, tokens: int = 256) -> dict[int, bytes]:
        task, _ = opened(replaced(place, "x", train={"seed": seed, "max_tokens": tokens}))
        batches = [
            (packed.rows.tolist(), task.collate(packed).uniform_draws) for packed in task.epoch_batches(epoch)
        ]
        return {row: chance[:8].numpy().tobytes() for rows, given in batches for row, chance in zip(rows,
            given, strict=True)}  # fmt: skip

    first = chances(1, 0)
    assert first == chances(1, 0, 512) and len(set(first.values())) == len(first) > 8
    for other in (chances(1, 1), chances(2, 0)):
        assert not set(first.values()) & set(other.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": {"generator_layers": 0}},
            "model.generator_layers is for task replaced-token-detection; task 'replaced-token-detection' "
            "requires it: set it to at most half of model.n_layers",
        ),
        ({"task": "translation", "model": {"generator_layers": 1}}, "generator_layers replaces tokens that "
            "an encoder learns to detect; this is "
                "kind='encoder-decoder'"),
        ({"model": {"lm_head": True}}, "lm_head=true and generator_layers cannot be combined: remove one of "
                                       "them"),
        ({"task": "masked-lm"}, "model.generator_layers is for task replaced-token-detection; task "
                                "'masked-lm' does not "
                "use it: remove it"),
        ({"task": {"name": "replaced-token-detection", "mask": 0.0}}, "mask of task "
            "'replaced-token-detection' must be a fraction above 0"),
        ({"task": {"name": "replaced-token-detection", "weight": -1}}, "weight"),
        ({"train": {"best_metric": "accuracy"}}, "task 'replaced-token-detection' does not measure "
                                                 "'accuracy'; it measures loss, f1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(place: Path, changes: dict[str, Any], message: str) -> None:  # noqa: F811
    with pytest.raises(ValueError, match=re.escape(message)):
        run_training(replaced(place, "refused", **changes), report=Notes())
    assert not (place / "refused" / "checkpoints").exists()


def test_no_teacher_tells_them(place: Path) -> None:  # noqa: F811
    made = replaced(place, "x", steps=2).model_dump() | {"distill": {"teacher": ["another"]}}
    with pytest.raises(
        ValueError,
        match="distill: task 'replaced-token-detection' does not support distillation: teacher and "
        "student get different inputs",
    ):
        Recipe.model_validate(made)


def test_it_is_measured_as_it_was_at_the_end(place: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    made = replaced(place, "measured", steps=3, data={"test": "letters.txt"})
    run_training(made, report=Notes())
    card = dict(re.findall(r"\| test (\w+) \| (\S+) \|", (made.out / "README.md").read_text()))
    assert main(["eval", str(made.out)]) == 0
    found = {line.split()[0]: float(line.split()[1]) for line in capsys.readouterr().out.splitlines()}
    assert found.keys() == {"loss", "perplexity", "f1"} and card.keys() == {"loss", "ppl", "f1"}
    for name, value in zip(("loss", "perplexity", "f1"), card.values(), strict=True):
        assert found[name] == pytest.approx(float(value), abs=6e-4)
    assert main(["eval", str(made.out), "--ensemble", str(made.out)]) == 2
    assert "detects tokens of its own generator: it cannot be in an ensemble" in capsys.readouterr().err


def test_others_read_its_encoder(place: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    """The reference implementation, and onnxruntime."""
    model = {"norm_first": False, "position": "learned", "n_segments": 2, "embedding_norm": True,
        "feed_forward": "gelu",
             "scale_embedding": False, "lm_head_bias": True}  # fmt: skip
    made = replaced(place, "exported", steps=3, model=model)
    run_training(made, report=Notes())
    run = ph.load(made.out)
    row = torch.tensor([[run.tokenizer.bos_id, *run.tokenizer.encode(["abcabc"])[0], run.tokenizer.eos_id]])
    wanted = run.model.encoder(row).detach()
    assert main(["export", str(made.out), str(place / "hf"), "--to", "hf", "--family", "electra"]) == 0
    assert "without its generator" in capsys.readouterr().out
    theirs = transformers.AutoModel.from_pretrained(place / "hf").eval()
    torch.testing.assert_close(theirs(row).last_hidden_state.detach(), wanted, atol=1e-5, rtol=1e-5)
    assert main(["export", str(made.out), str(place / "onnx"), "--to", "onnx"]) == 0
    session = onnxruntime.InferenceSession(place / "onnx/model.onnx")
    inputs = {
        "input_ids": row,
        "attention_mask": torch.ones_like(row),
        "token_type_ids": torch.zeros_like(row),
    }
    [vectors] = session.run(["last_hidden_state"], {name: x.numpy() for name, x in inputs.items()})
    torch.testing.assert_close(torch.from_numpy(vectors), wanted, atol=1e-4, rtol=1e-4)


def test_it_gives_vectors_and_fills_no_masks(place: Path) -> None:  # noqa: F811
    task, model = opened(replaced(place, "x"))
    run = Run(model, task.masked_lm.tokenizer, GenerationConfig())
    row = torch.tensor([[run.tokenizer.bos_id, *run.tokenizer.encode(["abc"])[0], run.tokenizer.eos_id]])
    torch.testing.assert_close(run.embed(["abc"])[0], model.encoder(row)[0].mean(0).detach())
    with pytest.raises(ValueError, match="this encoder has no language modelling head"):
        run.fill_mask(["a<mask>c"])
