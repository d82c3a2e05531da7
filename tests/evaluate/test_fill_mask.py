"""Masks filled and texts made vectors, beside one forward pass a text; and both in the shell."""

import pytest
import torch
from tests.evaluate.fill_mask_helpers import made
from tests.evaluate.fill_mask_helpers import run as run

from polyhead.core.errors import UserError
from polyhead.tokenizers.mask_tokens import encode_masked
from polyhead.tokenizers.tokenizer import Tokenizer


def mask_probabilities(run, ids):
    """(V,) probabilities at each mask of one row, with no other row beside it."""
    t = run.tokenizer
    row = torch.tensor([[t.bos_id, *ids, t.eos_id]])
    with torch.no_grad():
        return run.model(row)[0, row[0] == t.mask_id].softmax(-1)


def test_fills_are_the_top_k_tokens(run):
    t = run.tokenizer
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
    full_texts = [fill for fill in first if "\ufffd" not in fill.text]  # others are a part of a character
    assert full_texts
    for fill in full_texts:
        assert fill.text == f"the{fill.token} sat on{second[0].token} mat".replace("␣", " ")


def test_special_tokens_and_spare_rows_are_not_offered():
    """Though they were the likeliest by far; what is left of the probability is said as it is."""
    run = made(lm_head_bias=True)
    t = run.tokenizer
    with torch.no_grad():
        run.model.head.bias[t.special_ids] += 20
        run.model.head.bias[t.vocab_size :] += 20
    ((fills,),) = run.fill_mask(["the <mask> sat"], top_k=20)
    assert not {fill.token for fill in fills} & {run.display_token(i) for i in t.special_ids}
    assert all(0 < fill.probability < 1e-6 for fill in fills)


def test_invalid_inputs_are_refused(run):
    with pytest.raises(UserError, match="text 2 has no mask; put <mask> in place of a word"):
        run.fill_mask(["a <mask>", "a b"])
    with pytest.raises(UserError, match=r"top_k is 0; expected 1 to \d+ tokens"):
        run.fill_mask(["<mask>"], top_k=0)
    with pytest.raises(UserError, match="text 1 has more tokens than the model's maximum \\(40"):
        run.fill_mask(["<mask>" + " the dog" * 30])
    with pytest.raises(
        UserError, match="pooling: 'means' is not one of mean, first, max, last, own; did you mean 'mean'"
    ):
        run.embed(["a"], pooling="means")
    with pytest.raises(UserError, match="this model has no pooling; choose one of mean, first, max"):
        run.embed(["a"], pooling="own")
    with pytest.raises(UserError, match="this encoder has no language modelling head"):
        made(lm_head=False).fill_mask(["<mask>"])
    with pytest.raises(UserError, match="this requires an encoder, but the run is an encoder-decoder"):
        made(kind="encoder-decoder").embed(["a"])
    with pytest.raises(
        UserError, match="this requires an encoder, but the run is a classifier: use classify, embed"
    ):
        made(labels=("a", "b")).fill_mask(["<mask>"])
    no_mask = Tokenizer(run.tokenizer._inner, {"pad_token": "<pad>"})
    with pytest.raises(UserError, match="this tokenizer has no mask_token"):
        encode_masked(no_mask, ["<mask>"])
