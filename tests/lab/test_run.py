"""Experiments from the command line to their files. Times are never looked at."""

import json
import math
import re

import pytest
from tests.lab.run_helpers import NAMES
from tests.lab.run_helpers import toy as toy

from polyhead.cli import main
from polyhead.core import i18n
from polyhead.lab.page import translate_result
from polyhead.lab.result import Claim, ExperimentResult

LONGER = {
    "activations", "caches", "embedding", "heads", "norms", "paging", "positions", "recurrence", "tied-qkv",
    "tokens",
}  # fmt: skip
# designs, caches, keys and functions, which a Chinese page names as they are
NAMES_OF_THE_FIELD = """
ALiBi BPE BatchNorm CNN FILE GELU GQA GRU KL LSTM LayerNorm Leaky MHA MQA PReLU RMSNorm RNN ReLU Shaw SiLU
Transformer Var Xavier alibi batchnorm bits bpe cache caches diag dim elu ff fp geglu gelu growing head
heads kv layernorm leaky len linear log logit low max model name norm ntk paged post pre prelu projection
rank reglu relu rope safetensors scale silu sink softmax sqrt static subgen swiglu test txt window yarn
"""


def test_a_run_prints_claim_source_measurement_and_verdict_and_writes_both_files(toy, tmp_path, capsys):
    assert main(["experiments", "toy", "--out", str(tmp_path / "new" / "place"), "--seed", "7"]) == 0
    out, err = capsys.readouterr()
    for text in ("UNDECIDED", "It works.", "[Me, today]", "seed 7", "toy.html", "toy.json"):
        assert text in out
    assert "half of it is done" in err
    assert "quick" not in out
    found = json.loads((tmp_path / "new/place/toy.json").read_text())
    assert (found["name"], found["seed"], found["quick"]) == ("toy", 7, False)
    assert found["claims"][0]["verdict"] == "undecided"
    assert "polyhead experiments toy --seed 7" in (tmp_path / "new/place/toy.html").read_text()


def test_a_claim_that_does_not_hold_is_no_failure(toy, tmp_path, capsys):
    assert main(["experiments", "yo-yo", "--out", str(tmp_path)]) == 0
    assert "DID NOT HOLD" in capsys.readouterr().out


def test_all_runs_all(toy, tmp_path, capsys):
    assert main(["experiments", "all", "--out", str(tmp_path), "--quick"]) == 0
    assert [bench.quick for bench in toy] == [True, True]
    assert {path.name for path in tmp_path.iterdir()} == {"toy.html", "toy.json", "yo-yo.html", "yo-yo.json"}
    assert capsys.readouterr().out.count("quick run") == 2


def numbers(value):
    """Every number of a JSON tree, and every null that stands for one that is none."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("is_supported",):
                yield from numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif value is None or isinstance(value, int | float):
        yield value


def find_english(found):
    """The English words, other than names, of the texts of an experiment in Chinese."""
    claims = [Claim(claim["sentence"], "", claim["measurement"], None) for claim in found["claims"]]
    i18n.set_language("zh")
    try:
        result = translate_result(
            ExperimentResult(found["title"], found["lead"], claims, method=found["method"])
        )
    finally:
        i18n.set_language(None)
    texts = [result.title, result.lead, result.method]
    texts += [text for claim in result.claims for text in (claim.sentence, claim.measurement)]
    return set(re.findall("[A-Za-z]{2,}", " ".join(texts))) - set(NAMES_OF_THE_FIELD.split())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LONGER else ()) for n in NAMES]
)
def test_a_quick_run_of_every_experiment_gives_numbers_and_files(name, tmp_path, capsys):
    assert main(["experiments", name, "--out", str(tmp_path), "--quick"]) == 0
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert found["quick"] is True
    assert all(isinstance(n, int | float) and math.isfinite(n) for n in numbers(found))
    assert len(found["claims"]) >= 3
    assert all(
        claim["sentence"] and claim["source"] and re.search(r"\d", claim["measurement"])
        for claim in found["claims"]
    )
    assert {figure["kind"] for figure in found["figures"]} >= {"plot", "table"}
    html = (tmp_path / f"{name}.html").read_text()
    assert "Quick run" in html
    assert html.count("<svg") >= 2
    assert "nan" not in capsys.readouterr().out.lower().replace("finance", "")
    assert find_english(found) == set()
