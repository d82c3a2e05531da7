import math

import pytest
import torch
from tests.evaluate.scoring_helpers import LINES, make_scoring_run

import polyhead
from polyhead.core.errors import NotFiniteError, UserError
from polyhead.data.readers.plain_text import open_text
from polyhead.evaluate.perplexity import text_perplexity
from polyhead.evaluate.scoring import score_texts
from polyhead.generation.prompt_template import get_prompt_template


def sum_nll(model, tokens, width, prefix):
    """-log p of the tokens after the first, in rows of ``width`` tokens that begin with the prefix."""
    nll, start = 0.0, 0
    head = prefix * (tokens[: len(prefix)] != prefix)
    for i in range(1, len(tokens)):
        if i - start + len(head) > width:
            start, head = i - 1, prefix
        row = torch.tensor([[*head, *tokens[start:i]]])
        nll -= float(model(row)[0, -1].log_softmax(-1)[tokens[i]])
    return nll


@pytest.mark.parametrize("width", [3, 6, 12, 24])
@pytest.mark.parametrize("bos", ["", "<s>", "</s>"])
@pytest.mark.parametrize("documents", ["line", "file"])
@torch.no_grad()
def test_documents_are_predicted_from_their_beginning(tmp_path, documents, bos, width):
    """Those that fit into a row as by score; rows of longer ones begin as texts do."""
    run = polyhead.load(make_scoring_run(tmp_path, documents))
    prefix = [run.tokenizer.token_to_id(bos)] if bos else []
    run.tokenizer = t = run.tokenizer.with_template(prefix, [])
    result = text_perplexity(run.model, t, open_text([tmp_path / "names.txt"], documents), width, 60)
    lines = [line for line in LINES if line]
    text = "\n".join(lines if documents == "line" else LINES) + "\n"
    texts, end = (lines, [t.eos_id]) if documents == "line" else ([text], [])
    begins = end if bos == "</s>" else prefix or end
    rows = [[*begins, *ids, *end] for ids in t.encode(texts)]
    nll = sum(sum_nll(run.model, row, width, prefix) for row in rows)
    tokens, words = sum(len(row) - 1 for row in rows), len(text.split()) + text.count("\n")
    assert (result.tokens, result.words, result.characters) == (tokens, words, len(text))
    assert result.nll == pytest.approx(nll, rel=1e-5)
    assert result.loss == pytest.approx(nll / tokens, rel=1e-5)
    assert result.per_token == pytest.approx(math.exp(nll / tokens), rel=1e-4)
    assert result.per_word == pytest.approx(math.exp(nll / words), rel=1e-3)
    assert result.bits_per_character == pytest.approx(nll / math.log(2) / len(text), rel=1e-5)
    assert (result.malformed, result.unknown_tokens.unknown) == (0, 0)
    if documents == "line" and width > max(map(len, rows)):
        template = get_prompt_template(run.recipe, t)
        scores = score_texts(run.model, t, template, texts, 60)
        assert -sum(score.log_prob for score in scores) == pytest.approx(result.nll, rel=1e-5)


def test_invalid_texts_and_nan_are_refused(tmp_path):
    run = polyhead.load(make_scoring_run(tmp_path, "file"))
    with pytest.raises(UserError, match=r"for strings use run\.perplexity"):
        run.measure_perplexity("anna")
    (tmp_path / "short.txt").write_text("a")
    with pytest.raises(UserError, match="only one token, so there is nothing to predict; use more text"):
        run.measure_perplexity(open_text([tmp_path / "short.txt"], "file"))
    with torch.no_grad():
        run.model.head.weight[3, 0] = math.nan
    with pytest.raises(NotFiniteError):
        run.measure_perplexity(open_text([tmp_path / "names.txt"], "file"))
