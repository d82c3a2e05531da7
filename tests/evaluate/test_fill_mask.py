import pytest
import torch
from tests.evaluate.fill_mask_helpers import make_run
from tests.evaluate.fill_mask_helpers import run as run

from polyhead.core.errors import UserError
from polyhead.tokenizers.mask_tokens import encode_masked
from polyhead.tokenizers.tokenizer import Tokenizer


@torch.no_grad()
def mask_probabilities(run, ids):
    """(V,) probabilities at each mask of one row."""
    t = run.tokenizer
    row = torch.tensor([[t.bos_id, *ids, t.eos_id]])
    return run.model(row)[0, row[0] == t.mask_id].softmax(-1)


def test_fills_are_the_top_k_tokens(run):
    t = run.tokenizer
    with pytest.raises(UserError, match="this tokenizer has no mask_token"):
        encode_masked(Tokenizer(t._inner, {"pad_token": "<pad>"}), ["<mask>"])
    texts = ["the <mask> sat on [MASK] mat", "<mask>", "a long one with the dog and the <mask>, tired."]
    results = run.fill_mask(texts, top_k=4)
    assert [len(masks) for masks in results] == [2, 1, 1]
    for text, masks in zip(texts, results, strict=True):
        for p, fills in zip(mask_probabilities(run, encode_masked(t, [text])[0]), masks, strict=True):
            assert sum(fill.probability for fill in fills) < 1
            p[t.special_ids] = 0
            p[t.vocab_size :] = 0
            best = p.topk(4)
            assert [fill.probability for fill in fills] == pytest.approx(best.values.tolist(), rel=1e-4)
            assert [fill.token for fill in fills] == [run.display_token(i) for i in best.indices.tolist()]
    (first, second), _, _ = results
    complete = [fill for fill in first if "\ufffd" not in fill.text]  # others are a part of a character
    assert complete
    for fill in complete:
        assert fill.text == f"the{fill.token} sat on{second[0].token} mat".replace("␣", " ")


def test_special_tokens_and_spare_rows_are_excluded():
    """However likely they are; the other probabilities are not renormalized."""
    run = make_run(lm_head_bias=True)
    t = run.tokenizer
    with torch.no_grad():
        run.model.head.bias[t.special_ids] += 20
        run.model.head.bias[t.vocab_size :] += 20
    ((fills,),) = run.fill_mask(["the <mask> sat"], top_k=20)
    assert not {fill.token for fill in fills} & {run.display_token(i) for i in t.special_ids}
    assert all(0 < fill.probability < 1e-6 for fill in fills)


@pytest.mark.parametrize(
    ("changes", "method", "text", "options", "message"),
    [
        ({}, "fill_mask", "a b", {}, "text 2 has no mask; put <mask> in place of a word"),
        ({}, "fill_mask", "<mask>", {"top_k": 0}, r"top_k is 0; expected 1 to \d+ tokens"),
        ({}, "fill_mask", "<mask>" + " the dog" * 30, {}, r"has more tokens than the model's maximum \(40"),
        ({}, "embed", "a", {"pooling": "means"}, "'means' is not one of mean, .*; did you mean 'mean'"),
        ({}, "embed", "a", {"pooling": "own"}, "this model has no pooling; choose one of mean, first, max"),
        ({"lm_head": False}, "fill_mask", "<mask>", {}, "this encoder has no language modelling head"),
        ({"kind": "encoder-decoder"}, "embed", "a", {}, "requires an encoder, but the run is an encoder-dec"),
        ({"labels": ("a", "b")}, "fill_mask", "<mask>", {}, "is a classifier: use classify, embed"),
    ],
)
def test_invalid_inputs_are_refused(changes, method, text, options, message):
    with pytest.raises(UserError, match=message):
        getattr(make_run(**changes), method)(["a <mask>", text], **options)
