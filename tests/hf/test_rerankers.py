"""Classifiers of one label, as rerankers are published: their numbers are the reference's logits, bounded or
not.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.hf.conftest import TEXTS
from tests.hf.families.encoders import published
from tests.hf.families.encoders_cases import CLASSES, ROBERTA, SIZES, Case
from tests.hf.rerankers_helpers import FIRST, NEWER, NEWEST, reranker
from tests.serve.conftest import living

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.run.run_ensemble import ensemble_runs

PAIRS = [(a, b) for a in TEXTS for b in TEXTS]
IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


def rated(run: Any) -> torch.Tensor:
    return torch.tensor([one.probabilities[one.label] for one in run.classify(PAIRS)])


@pytest.mark.parametrize(
    ("said", "bounded"),
    [
        ({}, True),
        ({FIRST: IDENTITY}, False),
        ({NEWER: {"activation_fn": IDENTITY, "version": "4.1.0"}}, False),
        ({NEWER: {"version": "4.1.0"}, FIRST: None}, True),
        ({NEWEST: SIGMOID, NEWER: {"activation_fn": IDENTITY}}, True),
        ({NEWEST: IDENTITY}, False),
    ],
)
def test_scores_are_those_of_the_reference(said: dict[str, Any], bounded: bool, tmp_path: Path) -> None:
    logits = reranker(tmp_path / "a", said)
    wanted = logits.sigmoid() if bounded else logits
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    for directory in ("a", "run", "b"):
        torch.testing.assert_close(rated(ph.load(tmp_path / directory)), wanted, rtol=1e-5, atol=1e-5)
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config.get(NEWER) == (None if bounded else {"activation_fn": IDENTITY})


def test_a_line_a_number_and_the_same_from_the_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logits = reranker(tmp_path / "a", {FIRST: IDENTITY}).tolist()
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    for more in ([], ["--all"]):
        assert main(["classify", str(tmp_path / "a"), str(tmp_path / "pairs.tsv"), *more]) == 0
        found = [float(line) for line in capsys.readouterr().out.splitlines()]
        assert found == pytest.approx(logits, abs=1e-4)
    with living(ph.load(tmp_path / "a")) as live:
        data = live.ask("/v1/classify", {"input": PAIRS}).json()["data"]
        assert [one["score"] for one in data] == pytest.approx(logits, abs=1e-5)


def test_several_rerankers_rate_by_the_mean_of_their_scores(tmp_path: Path) -> None:
    scores = [reranker(tmp_path / str(seed), {}, seed).sigmoid() for seed in (0, 1)]
    assert not torch.allclose(*scores, atol=1e-2)
    runs = [ph.load(tmp_path / str(seed)) for seed in (0, 1)]
    torch.testing.assert_close(rated(ensemble_runs(runs)), (scores[0] + scores[1]) / 2, rtol=1e-5, atol=1e-5)


def test_scores_with_bounds_and_without_have_no_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reranker(tmp_path / "bounded", {})
    reranker(tmp_path / "free", {FIRST: IDENTITY}, 1)
    capsys.readouterr()
    for names in (("bounded", "free"), ("free", "bounded")):
        one, other = (str(tmp_path / name) for name in names)
        assert main(["classify", one, "a dog\tdogs", "--ensemble", other]) == 2
        assert re.fullmatch(
            "polyhead: scores of .*/free are unbounded and those of .*/bounded are between 0 and "
            "1: they cannot be averaged\n",
            capsys.readouterr().err,
        )


def test_there_is_nothing_to_be_right_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reranker(tmp_path / "a", {})
    (tmp_path / "labelled.tsv").write_text("a dog\tLABEL_0\n")
    assert (
        main(["eval", str(tmp_path / "a"), str(tmp_path / "labelled.tsv"), "--text", "0", "--label", "1"])
        == 2
    )
    assert (
        "this model outputs a number per text, not a class, so accuracy is undefined"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({FIRST: "torch.nn.Tanh"}, "the activation of scores is 'torch.nn.Tanh'; supported: Sigmoid and "
                                   "Identity of torch"),
        ({NEWER: {"activation_fn": 1}}, "the activation of scores is 1"),
        ({NEWER: IDENTITY}, "sentence_transformers is '.*Identity', expected an object"),
        ({"problem_type": "multi_label_classification"}, "problem_type is 'multi_.*', expected single_"),
    ],
)  # fmt: skip
def test_other_functions_are_told(said: dict[str, Any], told: str, tmp_path: Path) -> None:
    reranker(tmp_path, said)
    with pytest.raises(UserError, match=told):
        ph.load(tmp_path)


@pytest.mark.parametrize("labels", [1, 3])
def test_texts_are_read_as_far_as_the_tokenizer_says(
    labels: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = published(
        Case("RobertaConfig", CLASSES, {**SIZES, **ROBERTA, "num_labels": labels}), tmp_path / "a"
    )
    path = tmp_path / "a" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 19}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "a")
    with torch.no_grad():
        logits = torch.cat(
            [theirs(**tokenizer(*pair, truncation=True, return_tensors="pt")).logits for pair in PAIRS]
        )
    wanted = logits.sigmoid() if labels == 1 else logits.softmax(-1)
    cut = sum(len(tokenizer(*pair).input_ids) > 19 for pair in PAIRS)
    assert 0 < cut < len(PAIRS)
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "b").model_max_length == 19
    for name in ("a", "run", "b"):
        found = [[*one.probabilities.values()] for one in ph.load(tmp_path / name).classify(PAIRS)]
        torch.testing.assert_close(torch.tensor(found), wanted, rtol=1e-5, atol=1e-5)
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    capsys.readouterr()
    assert main(["classify", str(tmp_path / "a"), str(tmp_path / "pairs.tsv"), "--read-batch", "2"]) == 0
    told = capsys.readouterr()
    line = f"polyhead: truncated to 19 tokens: {cut} of {len(PAIRS)} texts; the longest is line "
    assert told.err.startswith(line)
    assert len(told.out.splitlines()) == len(PAIRS)
    with living(ph.load(tmp_path / "a")) as live:
        long = next(pair for pair in PAIRS if len(tokenizer(*pair).input_ids) > 19)
        assert live.ask("/v1/classify", {"input": [long]}).status_code == 400
        assert live.ask("/v1/classify", {"input": [long], "truncate": True}).status_code == 200
