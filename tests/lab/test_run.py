import json
import math
import re

import pytest
from tests.lab.run_helpers import QUICK, SLOW
from tests.lab.run_helpers import toy as toy

from polyhead.cli import main
from polyhead.core.i18n import use_language
from polyhead_lab.page import translate_result
from polyhead_lab.registry import Claim, ExperimentResult

# designs, caches, keys and functions, which are not translated
TECHNICAL_TERMS = """
ALiBi BERT BPE BatchNorm CNN FILE GELU GQA GRU KL LSTM LayerNorm Leaky MHA MQA PReLU RMSNorm RNN ReLU Shaw
SiLU Transformer Var Xavier alibi batchnorm bits bpe cache caches diag dim elu ff fp geglu gelu growing head
heads it kv layernorm leaky len linear log logit low max model name norm ntk paged post pre prelu projection
rank reglu relu rope safetensors scale sigmoid silu sink softmax sqrt static subgen swiglu Tanh tanh test txt
window yarn
"""


def test_runs_print_claims_and_write_files(toy, tmp_path, capsys):
    assert main(["experiments", "toy", "--out", str(tmp_path / "new/directory"), "--seed", "7"]) == 0
    out, err = capsys.readouterr()
    for text in ("UNDECIDED", "It works.", "[Me, today]", "seed 7", "toy.html", "toy.json"):
        assert text in out
    assert "half of it is done" in err
    assert "quick" not in out
    result = json.loads((tmp_path / "new/directory/toy.json").read_text())
    assert (result["name"], result["seed"], result["quick"]) == ("toy", 7, False)
    assert result["claims"][0]["verdict"] == "undecided"
    assert "polyhead experiments toy --seed 7" in (tmp_path / "new/directory/toy.html").read_text()
    assert main(["experiments", "all", "--out", str(tmp_path / "all"), "--quick"]) == 0
    assert [context.quick for context in toy[1:]] == [True, True]
    names = {path.name for path in (tmp_path / "all").iterdir()}
    assert names == {"toy.html", "toy.json", "yo-yo.html", "yo-yo.json"}
    out = capsys.readouterr().out
    assert out.count("quick run") == 2 and "DID NOT HOLD" in out


def iter_numbers(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if key != "is_supported":
                yield from iter_numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from iter_numbers(inner)
    elif value is None or isinstance(value, int | float):
        yield value


def find_english(result):
    """The English words, other than technical terms, of the texts of an experiment in Chinese."""
    claims = [Claim(claim["sentence"], "", claim["measurement"], None) for claim in result["claims"]]
    with use_language("zh"):
        texts = (result["title"], result["lead"])
        result = translate_result(ExperimentResult(*texts, claims, method=result["method"]))
    texts = [result.title, result.lead, result.method]
    texts += [text for claim in result.claims for text in (claim.sentence, claim.measurement)]
    return set(re.findall("[A-Za-z]{2,}", " ".join(texts))) - set(TECHNICAL_TERMS.split())


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_quick_run_of_experiment(name, tmp_path, capsys):
    assert main(["experiments", name, "--out", str(tmp_path), "--quick"]) == 0
    result = json.loads((tmp_path / f"{name}.json").read_text())
    assert result["quick"] is True
    assert all(isinstance(n, int | float) and math.isfinite(n) for n in iter_numbers(result))
    assert len(result["claims"]) >= 3
    for claim in result["claims"]:
        assert claim["sentence"] and claim["source"] and re.search(r"\d", claim["measurement"])
    assert {figure["kind"] for figure in result["figures"]} >= {"plot", "table"}
    html = (tmp_path / f"{name}.html").read_text()
    assert "Quick run" in html and html.count("<svg") >= 2
    assert "nan" not in capsys.readouterr().out.lower().replace("finance", "")
    assert find_english(result) == set()
