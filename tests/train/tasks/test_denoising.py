"""Damaged texts: what the encoder reads and the decoder writes, that it is learned, that a killed run goes
on.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes
from tests.train.tasks.test_masked import recipe as masked_recipe
from tests.train.test_resume import KILLED, Deadly, in_child, result

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.data.batching.collate import PairBatch
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.tasks.denoising import DenoisingTask

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unsynced")]

SPANS = {"name": "denoising", "noise": "spans"}


def recipe(place: Path, out: str, **changes: Any) -> Recipe:
    if changes.get("task", {}).get("noise") == "spans":
        changes["tokenizer"] = {"sentinels": 20} | changes.get("tokenizer", {})
    return masked_recipe(place, out, **{"task": "denoising", **changes})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A line is the alphabet from some letter to another."""
    directory = tmp_path_factory.mktemp("alphabets")
    rng = np.random.default_rng(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    rows = [
        letters[a : a + n] for a, n in zip(rng.integers(0, 13, 400), rng.integers(4, 14, 400), strict=True)
    ]
    (directory / "letters.txt").write_text("".join(f"{row}\n" for row in rows))
    return directory


def opened(made: Recipe, *, language: bool = False) -> tuple[DenoisingTask, Tokenizer]:
    """The task and its tokenizer, with a token that stands for a language before every text, as mBART has
    one.
    """
    part = TASK.get(made.task.name)
    part.check(made)
    config = made.tokenizer
    tokenizer = train_tokenizer(part.iter_texts(made), config.kind, config.vocab_size, config.sentinels)
    if language:
        tokenizer = tokenizer.with_template([tokenizer.mask_id], [tokenizer.eos_id])
    return part.open(made, tokenizer, Notes()), tokenizer


def sides(batch: PairBatch, t: Tokenizer) -> list[tuple[list[int], list[int], list[int]]]:
    """Source, what the decoder reads, what it writes, without padding."""
    found = []
    for source, target, labels in zip(
        batch.source.tolist(), batch.target.tolist(), batch.labels.tolist(), strict=True
    ):
        written = [i for i in labels if i != -100]
        found.append(([i for i in source if i != t.pad_id], target[: len(written)], written))
    return found


@pytest.mark.parametrize("documents", ["line", "file"])
def test_infilling_writes_every_text_whole(place: Path, documents: str) -> None:
    task, t = opened(recipe(place, "x", data={"document_separator": documents}))
    for epoch in (0, 1):
        written, hidden, read = [], 0, 0
        for chosen in task.epoch_batches(epoch):
            batch = task.collate(chosen)
            assert task.count_labels(batch) == int((batch.labels != -100).sum())
            assert max(batch.source.shape[1], batch.labels.shape[1]) <= 32
            assert batch.source.numel() <= 256 and batch.labels.numel() <= 256
            for source, target, labels in sides(batch, t):
                assert source[-1] == labels[-1] == t.eos_id and target == [t.bos_id, *labels[:-1]]
                kept = [i for i in source[:-1] if i != t.mask_id]
                assert is_within(kept, labels[:-1])
                assert len(labels) - 1 - len(kept) == math.ceil(0.3 * (len(labels) - 1))
                written.append(labels[:-1])
                hidden, read = hidden + len(labels) - 1 - len(kept), read + len(labels) - 1
        whole = t.decode([task.train.ids[task.train.ids >= 5]])[0]
        assert sorted("".join(t.decode(written))) == sorted(whole)
        if documents == "line":
            lines = (place / "letters.txt").read_text().splitlines()[: task.train.report.documents]
            assert sorted(t.decode(written)) == sorted(lines)


def is_within(part: list[int], whole: list[int]) -> bool:
    """Whether the part is the whole with some left out."""
    rest = iter(whole)
    return all(i in rest for i in part)


def test_spans_are_written_after_their_sentinels(place: Path) -> None:
    task, t = opened(
        recipe(place, "x", task=SPANS | {"share": 0.3, "span": 2}, data={"document_separator": "file"})
    )
    texts: list[list[int]] = []
    for chosen in task.epoch_batches(0):
        batch = task.collate(chosen)
        assert max(batch.source.shape[1], batch.labels.shape[1]) <= 32
        for source, target, labels in sides(batch, t):
            assert source[-1] == labels[-1] == t.eos_id and target == [t.bos_id, *labels[:-1]]
            said: dict[int, list[int]] = {}
            for token in labels[:-1]:
                if token in t.sentinel_ids:
                    said[token] = latest = []
                else:
                    latest.append(token)
            assert list(said) == t.sentinel_ids[: len(said)] and not said[list(said)[-1]]
            texts.append([i for token in source[:-1] for i in said.get(token, [token])])
    whole = t.decode([task.train.ids[task.train.ids >= 5]])[0]
    assert sorted("".join(t.decode(texts))) == sorted(whole)


@pytest.mark.parametrize("language", [False, True])
@pytest.mark.parametrize("task", [{"name": "denoising"}, SPANS])
def test_plans_promise_what_batches_hold(place: Path, task: dict[str, Any], language: bool) -> None:
    """No batch is larger than the plan that was cut by its lengths; for spans the lengths are exact."""
    found, t = opened(recipe(place, "x", task=task, train={"max_tokens": 100}), language=language)
    sources, targets = found._max_lengths(found._cut_segments(0))
    for chosen in found.epoch_batches(0):
        batch = found.collate(chosen)
        assert max(batch.source.numel(), batch.labels.numel()) <= 100
        lengths = (batch.source != t.pad_id).sum(1).numpy(), (batch.labels != -100).sum(1).numpy()
        assert (lengths[1] == targets[chosen.rows]).all() and (lengths[0] <= sources[chosen.rows]).all()
        if task is SPANS:
            assert (lengths[0] == sources[chosen.rows]).all()
    assert found.collate(found.largest_batch()).source.numel() > 60


@pytest.mark.acceptance("A11")
def test_damage_follows_from_seed_and_epoch(place: Path) -> None:
    tasks = [opened(recipe(place, "x", train={"seed": seed}))[0] for seed in (1, 1, 2)]
    first, again, other = (task.collate(task.epoch_batches(0)[0]) for task in tasks)
    assert torch.equal(first.source, again.source)
    assert first.source.shape != other.source.shape or not torch.equal(first.source, other.source)
    chosen = tasks[0].epoch_batches(0)[0]
    damaged = [tasks[0].collate(chosen._replace(epoch=epoch)) for epoch in (0, 1)]
    assert torch.equal(damaged[0].labels, damaged[1].labels)
    assert damaged[0].source.shape != damaged[1].source.shape or not torch.equal(
        damaged[0].source, damaged[1].source
    )
    model = ph.build(recipe(place, "x").model.with_vocabulary(tasks[0].tokenizer.vocab_size), 1).eval()
    assert tasks[0].evaluate(model) == tasks[2].evaluate(model)


def test_sentences_are_moved_before_spans_are_hidden(place: Path) -> None:
    (place / "prose.txt").write_text(
        "".join(f"one {w}. two {w}! three {w}.\n" for w in ("a", "b", "c", "d")) * 5
    )
    task, t = opened(
        recipe(
            place,
            "x",
            task={"name": "denoising", "permute": True, "share": 0.01},
            data={"train": "prose.txt"},
        )
    )
    moved = 0
    for chosen in task.epoch_batches(0):
        for source, _, labels in sides(task.collate(chosen), t):
            text, read = t.decode([labels, source])
            assert text.startswith("one")
            moved += not is_within(source[:1], labels[:1]) and read[:3] != "one"
            assert abs(len(read) - len(text)) <= 1
    assert moved > 3


@pytest.mark.parametrize(("task", "steps"), [({"name": "denoising"}, 200), (SPANS | {"share": 0.3}, 220)])
def test_it_learns_what_neighbours_tell(place: Path, task: dict[str, Any], steps: int) -> None:
    """Damage within a text leaves one way to mend it; at its ends anything could have stood."""
    train = {
        "log_every": 50,
        "eval_every": steps,
        "save_every": steps,
        "max_tokens": 512,
        "lr": 1e-2,
        "ema": None,
    }
    model = {"d_model": 32, "dropout": 0.0, "position": "learned"}
    notes = Notes()
    run, _ = run_training(
        recipe(place, f"learned-{steps}", steps=steps, task=task, train=train, model=model), report=notes
    )
    row = [row for row in notes.rows if row["split"] == "valid"][-1]
    assert row["accuracy"] > 0.85 and row["ppl"] == pytest.approx(math.exp(row["loss"]))
    t = run.tokenizer
    # the last span of T5 ends its text, as free and covered tokens take turns and a free one comes first
    before, after, whole = ("cdefghi", "", "jkl") if "noise" in task else ("cdef", "jkl", "cdefghijkl")
    between = t.sentinel_ids[:1] if "noise" in task else [t.mask_id]
    source = torch.tensor([[*t.encode([before])[0], *between, *t.encode([after])[0], t.eos_id]])
    wanted = [*(between if "noise" in task else []), *t.encode([whole])[0]]
    logits = run.model(source, torch.tensor([[t.bos_id, *wanted]]))
    assert logits.argmax(-1)[0, : len(wanted)].tolist() == wanted


@pytest.mark.parametrize("task", [{"name": "denoising"}, SPANS], ids=["infilling", "spans"])
def test_a_killed_run_ends_with_the_same_bits(place: Path, task: dict[str, Any]) -> None:
    whole, killed = (recipe(place, f"{name}-{len(task)}", task=task) for name in ("whole", "killed"))
    assert in_child(lambda: run_training(whole, report=Notes())) == 0
    assert in_child(lambda: run_training(killed, report=Deadly(18))) == KILLED
    assert in_child(lambda: run_training(killed, resume=True, report=Notes())) == 0
    assert result(killed) == result(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": SPANS, "tokenizer": {"sentinels": 0}}, "hides 2 spans of 31 tokens and requires 3 "
            "sentinels; the tokenizer has 0: set "
                "tokenizer.sentinels=100"),
        ({"task": SPANS | {"share": 0.5, "span": 1}}, "writes 32 tokens for 31 input tokens, more than "
            "data.max_len"),
        ({"task": SPANS | {"permute": True}}, "permute of task 'denoising' requires noise=infilling"),
        ({"task": {"name": "denoising", "share": 30}}, "share of task 'denoising' must be above 0 and at "
            "most 1, not 30.0"),
        ({"task": {"name": "denoising", "span": 0}}, "span of task 'denoising' must be a number of tokens "
            "above 0"),
        ({"task": {"name": "denoising", "noise": "span"}}, "noise of task 'denoising'"),
        ({"data": {"max_len": 64}}, "data.max_len is 64, more than model.max_len=32: rows do not fit; set "
                                    "data.max_len=32"),
        ({"model": {"kind": "decoder"}}, "task 'denoising' trains a model of kind 'encoder-decoder', not "
                                         "'decoder'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_before_anything_is_learned(
    place: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_training(recipe(place, "refused", **changes), report=Notes())
    assert not (place / "refused" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cache": "state"}, "generation.cache: cache 'state' stores a recurrent state"),
        ({"bad_words": ["<none>"]}, "generation.bad_words: no token '<none>' in the vocabulary"),
    ],
)
def test_what_outputs_would_be_refused_for_is_told_before_anything_is_learned(
    place: Path, settings: dict[str, Any], message: str
) -> None:
    given = recipe(place, "undecoded")
    given = given.model_copy(update={"generation": GenerationConfig.model_validate(settings)})
    with pytest.raises(UserError, match=message):
        run_training(given, report=Notes())
    assert not (place / "undecoded" / "checkpoints").exists()
