import math

import pytest
import torch
from tests.evaluate.scoring_helpers import LINES, make_scoring_run

import polyhead
from polyhead.core.errors import NotFiniteError, UserError
from polyhead.data.readers.plain_text import open_text


@pytest.mark.parametrize("documents", ["line", "file"])
@torch.no_grad()
def test_perplexity_of_rows_with_separate_documents(tmp_path, documents):
    run = polyhead.load(make_scoring_run(tmp_path, documents))
    t, width = run.tokenizer, 6
    result = run.measure_perplexity(open_text([tmp_path / "names.txt"], documents))
    lines = [line for line in LINES if line]
    texts, text = (lines, "\n".join(lines) + "\n") if documents == "line" else ((), "\n".join(LINES) + "\n")
    ids, starts = [], []
    for encoded in t.encode(texts or [text]):
        starts.append(len(ids))
        ids += [*[t.eos_id] * (documents == "line"), *encoded]
    ids += [t.eos_id] * (documents == "line")
    nll = 0.0
    for label in range(1, len(ids)):  # its context begins with its row or its document
        first = max((label - 1) // width * width, max(start for start in starts if start < label))
        nll -= float(run.model(torch.tensor([ids[first:label]]))[0, -1].log_softmax(-1)[ids[label]])
    words = len(text.split()) + text.count("\n")
    assert (result.tokens, result.words, result.characters) == (len(ids) - 1, words, len(text))
    assert result.nll == pytest.approx(nll, rel=1e-4)
    assert result.loss == pytest.approx(nll / (len(ids) - 1), rel=1e-4)
    assert result.per_token == pytest.approx(math.exp(nll / (len(ids) - 1)), rel=1e-3)
    assert result.per_word == pytest.approx(math.exp(nll / words), rel=1e-3)
    assert result.bits_per_character == pytest.approx(nll / math.log(2) / len(text), rel=1e-4)
    assert (result.malformed, result.unknown_tokens.unknown) == (0, 0)


def test_invalid_texts_and_nan_are_refused(tmp_path):
    run = polyhead.load(make_scoring_run(tmp_path, "file"))
    with pytest.raises(UserError, match=r"for strings use run\.perplexity"):
        run.measure_perplexity("anna")
    (tmp_path / "short.txt").write_text("\n")
    with pytest.raises(UserError, match="only one token, so there is nothing to predict; use more text"):
        run.measure_perplexity(open_text([tmp_path / "short.txt"], "file"))
    with torch.no_grad():
        run.model.head.weight[3, 0] = math.nan
    with pytest.raises(NotFiniteError):
        run.measure_perplexity(open_text([tmp_path / "names.txt"], "file"))
