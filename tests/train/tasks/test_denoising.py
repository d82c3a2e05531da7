import math

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes
from tests.train.tasks.test_masked import N_SPECIAL
from tests.train.tasks.test_masked import recipe as masked_recipe

import polyhead as ph
from polyhead.core.registry import TASK
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_report")]
INFILLING, SPANS = {"name": "denoising"}, {"name": "denoising", "noise": "spans"}


def recipe(directory, out, task=INFILLING, **changes):
    if task.get("noise") == "spans":
        changes["tokenizer"] = {"sentinels": 20} | changes.get("tokenizer", {})
    return masked_recipe(directory, out, task=task, **changes)


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("alphabets")
    rng = np.random.default_rng(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    sizes = zip(rng.integers(0, 13, 400), rng.integers(4, 14, 400), strict=True)
    (directory / "letters.txt").write_text("".join(f"{letters[a : a + n]}\n" for a, n in sizes))
    return directory


def open_task(recipe, with_language=False):
    """The task and its tokenizer, with a language token before every text, as mBART has one."""
    part, config = TASK.get("denoising"), recipe.tokenizer
    part.check(recipe)
    tokenizer = train_tokenizer(part.iter_texts(recipe), config.kind, config.vocab_size, config.sentinels)
    if with_language:
        tokenizer = tokenizer.with_template([tokenizer.mask_id], [tokenizer.eos_id])
    return part.open(recipe, tokenizer, Notes()), tokenizer


def unpad(batch, t) -> list[tuple[list[int], list[int], list[int]]]:
    rows = []
    for row in zip(batch.source.tolist(), batch.target.tolist(), batch.labels.tolist(), strict=True):
        source, target, labels = row
        labels = [i for i in labels if i != -100]
        rows.append(([i for i in source if i != t.pad_id], target[: len(labels)], labels))
    return rows


def is_subsequence(part, sequence) -> bool:
    rest = iter(sequence)
    return all(i in rest for i in part)


def decode_all(task, t) -> str:
    return t.decode([task.train.ids[task.train.ids >= N_SPECIAL]])[0]


@pytest.mark.parametrize("separator", ["line", "file"])
def test_infilling_predicts_complete_texts(separator, corpus_dir):
    task, t = open_task(recipe(corpus_dir, "x", data={"document_separator": separator}))
    for epoch in (0, 1):
        texts = []
        for packed_rows in task.epoch_batches(epoch):
            batch = task.collate(packed_rows)
            assert task.count_labels(batch) == int((batch.labels != -100).sum())
            assert max(batch.source.shape[1], batch.labels.shape[1]) <= 32
            assert batch.source.numel() <= 256 and batch.labels.numel() <= 256
            for source, target, labels in unpad(batch, t):
                assert source[-1] == labels[-1] == t.eos_id and target == [t.bos_id, *labels[:-1]]
                visible, text = [i for i in source[:-1] if i != t.mask_id], labels[:-1]
                assert is_subsequence(visible, text)
                assert len(text) - len(visible) == math.ceil(0.3 * len(text))
                texts.append(text)
        assert sorted("".join(t.decode(texts))) == sorted(decode_all(task, t))
        if separator == "line":
            lines = (corpus_dir / "letters.txt").read_text().splitlines()[: task.train.report.documents]
            assert sorted(t.decode(texts)) == sorted(lines)


def test_spans_are_predicted_after_their_sentinels(corpus_dir):
    options = {"task": SPANS | {"share": 0.3, "span": 2}, "data": {"document_separator": "file"}}
    task, t = open_task(recipe(corpus_dir, "x", **options))
    texts = []
    for packed_rows in task.epoch_batches(0):
        batch = task.collate(packed_rows)
        assert max(batch.source.shape[1], batch.labels.shape[1]) <= 32
        for source, target, labels in unpad(batch, t):
            assert source[-1] == labels[-1] == t.eos_id and target == [t.bos_id, *labels[:-1]]
            spans = {}
            for token in labels[:-1]:
                if token in t.sentinel_ids:
                    spans[token] = span = []
                else:
                    span.append(token)
            assert list(spans) == t.sentinel_ids[: len(spans)] and not spans[list(spans)[-1]]
            texts.append([i for token in source[:-1] for i in spans.get(token, [token])])
    assert sorted("".join(t.decode(texts))) == sorted(decode_all(task, t))


@pytest.mark.parametrize("with_language", [False, True])
@pytest.mark.parametrize("noise", [INFILLING, SPANS], ids=["infilling", "spans"])
def test_batches_are_as_large_as_planned(noise, with_language, corpus_dir):
    task, t = open_task(recipe(corpus_dir, "x", task=noise, train={"max_tokens": 100}), with_language)
    sources, targets = task._max_lengths(task._cut_segments(0))
    for packed_rows in task.epoch_batches(0):
        batch = task.collate(packed_rows)
        assert max(batch.source.numel(), batch.labels.numel()) <= 100
        source, target = (batch.source != t.pad_id).sum(1).numpy(), (batch.labels != -100).sum(1).numpy()
        assert (target == targets[packed_rows.rows]).all() and (source <= sources[packed_rows.rows]).all()
        if noise is SPANS:
            assert (source == sources[packed_rows.rows]).all()
    assert task.collate(task.largest_batch()).source.numel() > 60


@pytest.mark.acceptance("A11")
def test_noise_follows_from_seed_and_epoch(corpus_dir):
    tasks = [open_task(recipe(corpus_dir, "x", train={"seed": seed}))[0] for seed in (1, 1, 2)]
    first, same_batch, other = (task.collate(task.epoch_batches(0)[0]) for task in tasks)
    assert first.source.tolist() == same_batch.source.tolist() != other.source.tolist()
    packed_rows = tasks[0].epoch_batches(0)[0]
    a, b = (tasks[0].collate(packed_rows._replace(epoch=epoch)) for epoch in (0, 1))
    assert torch.equal(a.labels, b.labels)
    assert a.source.tolist() != b.source.tolist()
    config = recipe(corpus_dir, "x").model.with_vocabulary(tasks[0].tokenizer.vocab_size)
    model = ph.build(config, 1).eval()
    assert tasks[0].evaluate(model) == tasks[2].evaluate(model)


def test_sentences_are_permuted_before_spans_are_masked(corpus_dir):
    lines = [f"one {w}. two {w}! three {w}.\n" for w in ("a", "b", "c", "d")]
    (corpus_dir / "prose.txt").write_text("".join(lines) * 5)
    options = {"task": INFILLING | {"permute": True, "share": 0.01}, "data": {"train": "prose.txt"}}
    task, t = open_task(recipe(corpus_dir, "x", **options))
    n_moved = 0
    for packed_rows in task.epoch_batches(0):
        for source, _, labels in unpad(task.collate(packed_rows), t):
            text, noisy = t.decode([labels, source])
            assert text.startswith("one")
            n_moved += source[0] != labels[0] and noisy[:3] != "one"
            assert abs(len(noisy) - len(text)) <= 1
    assert n_moved > 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "steps"), [(INFILLING, 200), (SPANS | {"share": 0.3}, 220)], ids=["infilling", "spans"]
)
def test_masked_spans_are_learned(noise, steps, corpus_dir):
    """Inside a text only one span fits; at its ends several would."""
    train = {"log_every": 100, "eval_every": steps, "save_every": steps, "max_tokens": 512, "ema": None}
    options = {"train": train, "model": {"d_model": 32, "dropout": 0.0, "position": "learned"}}
    notes = Notes()
    config = recipe(corpus_dir, f"trained-{steps}", steps=steps, task=noise, **options)
    run, _ = run_training(config, report=notes)
    row = [row for row in notes.rows if row["split"] == "valid"][-1]
    assert row["accuracy"] > 0.85 and row["ppl"] == pytest.approx(math.exp(row["loss"]))
    t = run.tokenizer
    # the last span of T5 ends its text, as free and masked tokens alternate and a free one comes first
    prefix, suffix, text = ("cdefghi", "", "jkl") if "noise" in noise else ("cdef", "jkl", "cdefghijkl")
    mask = t.sentinel_ids[:1] if "noise" in noise else [t.mask_id]
    source = torch.tensor([[*t.encode([prefix])[0], *mask, *t.encode([suffix])[0], t.eos_id]])
    expected = [*(mask if "noise" in noise else []), *t.encode([text])[0]]
    logits = run.model(source, torch.tensor([[t.bos_id, *expected]]))
    assert logits.argmax(-1)[0, : len(expected)].tolist() == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"task": SPANS, "tokenizer": {"sentinels": 0}},
            "hides 2 spans of 31 tokens and requires 3 sentinels; the tokenizer has 0: set tokenizer",
        ),
        ({"task": SPANS | {"share": 0.5, "span": 1}}, "writes 32 tokens for 31 input tokens, more than"),
        ({"task": SPANS | {"permute": True}}, "permute of task 'denoising' requires noise=infilling"),
        ({"task": INFILLING | {"share": 30}}, "'denoising' must be above 0 and at most 1, not 30.0"),
        ({"task": INFILLING | {"span": 0}}, "span of task 'denoising' must be a number of tokens above 0"),
        ({"task": INFILLING | {"noise": "span"}}, "noise of task 'denoising'"),
        ({"data": {"max_len": 64}}, "data.max_len is 64, more than model.max_len=32: rows do not fit; set"),
        ({"model": {"kind": "decoder"}}, "trains a model of kind 'encoder-decoder', not 'decoder'"),
    ],
)
def test_unsuitable_recipe_is_refused(changes, message, corpus_dir):
    with pytest.raises(ValueError, match=message):
        run_training(recipe(corpus_dir, "refused", **changes), report=Notes())
    assert not (corpus_dir / "refused" / "checkpoints").exists()
