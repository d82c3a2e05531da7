import re
import string

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from polyhead.data.readers.labeled import LabeledExample
from polyhead.data.readers.spans import TextSpan
from polyhead.evaluate.answering import (
    MAX_ANSWER_TOKENS,
    answer_baselines,
    answer_measures,
    choose_answer,
)


def squad_tokens(text):
    """The normalization of evaluate-v2.0.py, step by step."""
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text).split()


def squad_f1(answer, reference):
    """Precision and recall of the words, counted one by one."""
    found, wanted = squad_tokens(answer), squad_tokens(reference)
    if not found or not wanted:
        return float(found == wanted)
    rest, same = list(wanted), 0
    for word in found:
        if word in rest:
            rest.remove(word)
            same += 1
    precision, recall = same / len(found), same / len(wanted)
    return 2 * precision * recall / (precision + recall) if same else 0.0


WORDS = st.lists(
    st.sampled_from(["the", "An", "cat", "Cat.", "cat's", "U.S.", "mat", "—", "a-b"]), max_size=4
)


@example([(["a-b"], [["ab"]])])  # the hyphen goes first, so that a is no article
@given(st.lists(st.tuples(WORDS, st.lists(WORDS, max_size=3)), min_size=1, max_size=5))
def test_measures_are_those_of_squad(rows):
    answers = [" ".join(words) for words, _ in rows]
    references = [[" ".join(words) for words in some] for _, some in rows]
    examples = [
        LabeledExample(1, ("", ""), "", "", spans=tuple(TextSpan(0, 1, x) for x in r)) for r in references
    ]
    known = [[x for x in some if squad_tokens(x)] or [""] for some in references]
    f1 = [max(squad_f1(a, x) for x in some) for a, some in zip(answers, known, strict=True)]
    match = [
        any(squad_tokens(a) == squad_tokens(x) for x in some) for a, some in zip(answers, known, strict=True)
    ]
    expected = {"f1": sum(f1) / len(f1), "exact_match": sum(match) / len(match)}
    assert answer_measures(answers, examples) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(6))
def test_best_span_of_all_windows(seed):
    """Against all spans, one by one; the context has a character per token."""
    rng = torch.Generator().manual_seed(seed)
    context, windows = "".join(chr(97 + i % 26) for i in range(50)), [(0, 35), (20, 50)]
    logits = {start: 3 * torch.randn(end - start + 1, 2, generator=rng) for start, end in windows}
    if seed % 3 == 1:  # the best span would be too long
        logits[0][1, 0] += 20
        logits[0][35, 1] += 20
    elif seed % 3 == 2:  # the answer is in the other window
        logits[0][0] += 20
    outputs = {start: values.log_softmax(0) for start, values in logits.items()}
    spans = {}
    for (start, end), log_p in zip(windows, outputs.values(), strict=True):
        for i in range(start, end):
            for j in range(i, min(end, i + MAX_ANSWER_TOKENS)):
                p = float(log_p[1 + i - start, 0] + log_p[1 + j - start, 1])
                spans[i, j] = max(p, spans.get((i, j), -99.0))
    first, last = max(spans, key=spans.__getitem__)
    answer = choose_answer(context, range(50), outputs)
    no_answer = min(float(log_p[0].sum()) for log_p in outputs.values())
    assert no_answer < spans[first, last]
    assert answer[:3] == (context[first : last + 1], first, last + 1)
    assert answer.score == pytest.approx(torch.tensor(spans[first, last]).exp().item())
    for log_p in outputs.values():
        log_p[0] = 0.0
    assert choose_answer(context, range(50), outputs) == ("", 0, 0, 1.0)


def test_baseline_is_the_better_guess():
    context = "Ann met Bo. The train leaves at noon! Nothing."
    spans = (TextSpan(32, 36, "noon"),)
    examples = [
        LabeledExample(1, ("When does the train leave?", context), "noon", "", spans=spans),
        LabeledExample(2, ("Who sang?", context), "", ""),
    ]
    baselines = answer_baselines(examples)
    assert (baselines["exact_match"].value, baselines["exact_match"].guess) == (0.5, "empty answer")
    assert (baselines["f1"].value, baselines["f1"].guess) == (0.5, "empty answer")
    f1 = 2 * 1 / (4 + 1)  # train leaves at noon
    assert answer_baselines(examples[:1])["f1"] == (pytest.approx(f1), "sentence like the question", "")
