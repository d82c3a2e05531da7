"""Marks of a text while a model learns it, against plain forward passes."""

import base64

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.explain.explain_helpers import TARGET, TEXT, make_run

from polyhead.explain.marks import (
    MARKS_DIRECTORY,
    MAX_MARK_BYTES,
    MAX_SHOWN_MARKS,
    drop_marks,
    read_marks,
    write_mark,
)

KINDS = {
    "encoder-decoder": {"kind": "encoder-decoder"},
    "decoder": {"kind": "decoder"},
    "masked": {"kind": "encoder"},
    "classifier": {"kind": "encoder", "labels": ("bad", "good")},
    "detector": {"kind": "encoder", "generator_layers": 1, "lm_head": False},
    "recurrent": {"kind": "decoder", "block": "gru", "position": "none"},
    "shared layers": {"kind": "decoder", "share_layers": True},
}


def mark_of(run, tmp_path, text=TEXT, target=None, step=0):
    write_mark(run, text, target, step, tmp_path)
    return read_marks(tmp_path)[-1]


def weights_of(entry):
    levels = np.frombuffer(base64.b64decode(entry["data"]), np.uint8)
    return torch.from_numpy(levels.reshape(entry["shape"]) / 255)


@pytest.mark.parametrize(
    "kind", [k if k == "decoder" else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_mark_has_the_numbers_of_a_forward_pass(kind, tmp_path):
    run = make_run(**KINDS[kind])
    target = TARGET if kind == "encoder-decoder" else None
    mark = mark_of(run, tmp_path, target=target)
    t = run.tokenizer
    source, target_ids = t.encode([TEXT, TARGET])
    if kind == "encoder-decoder":
        inputs = torch.tensor([[*source, t.eos_id]]), torch.tensor([[t.bos_id, *target_ids]])
        labels = [*target_ids, t.eos_id]
    elif kind in ("decoder", "recurrent", "shared layers"):
        inputs, labels = (torch.tensor([source]),), [*source[1:], -100]
    else:
        ids = [t.bos_id, *source, t.eos_id]
        labels = [-100] * len(ids)
        if kind == "masked":
            for i in range(1, len(ids) - 1, 4):
                labels[i], ids[i] = ids[i], t.mask_id
        inputs = (torch.tensor([ids]),)
    with torch.inference_mode():
        logits = run.model(*inputs)
        maps = run.attention_maps(TEXT, target) if kind not in ("masked", "recurrent") else {}
    expected_maps = [m.weights for m in maps.values()]
    found = [weights_of(entry) for entry in mark["attention"]]
    if kind == "encoder-decoder":  # cross, encoder, decoder; the mark has them by name
        by_name = {e["path"]: w for e, w in zip(mark["attention"], found, strict=True)}
        kinds = ("decoder", "cross"), ("encoder", "attn"), ("decoder", "attn")
        found = [by_name[f"{side}.layers.{i}.{part}"] for side, part in kinds for i in range(2)]
        assert {tuple(e["sides"]) for e in mark["attention"]} == {(1, 0), (0, 0), (1, 1)}
    if kind == "recurrent":
        assert found == []
    elif kind != "masked":
        pairs = zip(found, [layer for one in expected_maps for layer in one], strict=True)
        assert max((one - other).abs().max() for one, other in pairs) < 0.51 / 255
    losses = [loss for *_, loss in mark["guesses"]]
    if kind == "classifier":
        p, best = logits[0].softmax(-1).max(-1)
        assert mark["guesses"][0][0][0] == [run.config.labels[best], pytest.approx(p.item(), rel=1e-5)]
        assert mark["loss"] is None
    elif kind == "detector":
        assert losses == pytest.approx((-(1 - logits[0].sigmoid()).log()).tolist(), rel=1e-4)
    else:
        expected = F.cross_entropy(logits[0], torch.tensor(labels), reduction="none").tolist()
        assert losses == [
            None if label == -100 else pytest.approx(x, rel=1e-4)
            for x, label in zip(expected, labels, strict=True)
        ]
        assert mark["loss"] == pytest.approx(
            F.cross_entropy(logits[0], torch.tensor(labels)).item(), rel=1e-4
        )
        p, best = logits[0, 3].softmax(-1).topk(3)
        assert [p for _, p in mark["guesses"][3][0]] == pytest.approx(p.tolist(), rel=1e-4)


def test_mark_of_many_heads_is_small(tmp_path):
    run = make_run(kind="encoder-decoder", n_layers=6, n_heads=8, d_model=32, max_len=200)
    write_mark(run, "zwei katzen schlafen am haus " * 6, "two dogs sleep at the house " * 6, 7, tmp_path)
    assert (tmp_path / MARKS_DIRECTORY / "7.json").stat().st_size < MAX_MARK_BYTES
    (mark,) = read_marks(tmp_path)
    assert [len(side) for side in mark["tokens"]] == [10, 10]  # 144 maps of 10 by 10 weights


def test_later_marks_are_dropped(tmp_path):
    directory = tmp_path / MARKS_DIRECTORY
    assert read_marks(tmp_path) == []
    directory.mkdir()
    for step in range(0, 1000, 10):
        (directory / f"{step}.json").write_text(f'{{"step":{step}}}')
    steps = [mark["step"] for mark in read_marks(tmp_path)]
    assert (len(steps), steps[0], steps[-1]) == (MAX_SHOWN_MARKS, 0, 990)
    assert set(np.diff(steps)) == {40, 50}
    drop_marks(tmp_path, 20)
    assert [mark["step"] for mark in read_marks(tmp_path)] == [0, 10, 20]
    drop_marks(tmp_path, 0)
    assert read_marks(tmp_path) == []
