import json
import re

import pytest
import torch
import transformers
from tests.hf.conftest import edit_json
from tests.hf.families.encoders import make_encoder
from tests.hf.families.encoders_cases import CLASSES, ROBERTA, SIZES, Case
from tests.hf.families.laws import round_trip
from tests.hf.load_helpers import REFUSALS
from tests.hf.rerankers_helpers import NEWER, OLDEST, PAIRS, reranker
from tests.serve.conftest import serve_run

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.run.run_ensemble import ensemble_runs

IDENTITY = "torch.nn.modules.linear.Identity"


UNBOUNDED_KEYS = {OLDEST: IDENTITY}


def score_pairs(run):
    return torch.tensor([one.probabilities[one.label] for one in run.classify(PAIRS)])


def write_pairs(path):
    path.write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    return str(path)


@pytest.mark.parametrize(("keys", "is_bounded"), REFUSALS["scores"])
def test_scores_equal_reference(keys, is_bounded, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    logits = reranker(checkpoint, keys)
    expected = logits.sigmoid() if is_bounded else logits
    run_dir, exported_dir = round_trip(checkpoint)
    for directory in (checkpoint, run_dir, exported_dir):
        torch.testing.assert_close(score_pairs(ph.load(directory)), expected, rtol=1e-5, atol=1e-5)
    config = json.loads((exported_dir / "config.json").read_text())
    assert config.get(NEWER) == (None if is_bounded else {"activation_fn": IDENTITY})


def test_scores_of_verb_and_service(tmp_path, capsys):
    checkpoint = tmp_path / "checkpoint"
    logits, pairs = reranker(checkpoint, UNBOUNDED_KEYS).tolist(), write_pairs(tmp_path / "pairs.tsv")
    for options in ([], ["--all"]):
        assert main(["classify", str(checkpoint), pairs, *options]) == 0
        scores = [float(line) for line in capsys.readouterr().out.splitlines()]
        assert scores == pytest.approx(logits, abs=1e-4)
    (tmp_path / "labels.tsv").write_text("a dog\tLABEL_0\n")
    columns = ["--text", "0", "--label", "1"]
    assert main(["eval", str(checkpoint), str(tmp_path / "labels.tsv"), *columns]) == 2
    message = "this model outputs a number per text, not a class, so accuracy is undefined"
    assert message in capsys.readouterr().err
    with serve_run(ph.load(checkpoint)) as live:
        data = live.ask("/v1/classify", {"input": PAIRS}).json()["data"]
        assert [one["score"] for one in data] == pytest.approx(logits, abs=1e-5)


def test_ensemble_averages_scores(tmp_path, capsys):
    scores = [reranker(tmp_path / str(seed), {}, seed).sigmoid() for seed in (0, 1)]
    assert not torch.allclose(*scores, atol=1e-2)
    ensemble = ensemble_runs([ph.load(tmp_path / str(seed)) for seed in (0, 1)])
    torch.testing.assert_close(score_pairs(ensemble), sum(scores) / 2, rtol=1e-5, atol=1e-5)
    reranker(tmp_path / "free", UNBOUNDED_KEYS, 1)
    for names in (("0", "free"), ("free", "0")):
        first, second = (str(tmp_path / name) for name in names)
        capsys.readouterr()
        assert main(["classify", first, "a dog\tdogs", "--ensemble", second]) == 2
        message = "polyhead: scores of .*/free are unbounded and those of .*/0 are between 0 and "
        assert re.fullmatch(message + "1: they cannot be averaged\n", capsys.readouterr().err)


@pytest.mark.parametrize(("keys", "message"), REFUSALS["rerankers"])
def test_unsupported_activation_is_refused(keys, message, tmp_path):
    reranker(tmp_path, keys)
    with pytest.raises(UserError, match=message):
        ph.load(tmp_path)


@pytest.mark.parametrize("labels", [1, 3])
def test_pairs_truncated_to_model_max_length(labels, tmp_path, capsys):
    checkpoint = tmp_path / "checkpoint"
    case = Case("RobertaConfig", CLASSES, {**SIZES, **ROBERTA, "num_labels": labels})
    reference = make_encoder(checkpoint, case)
    edit_json(checkpoint / "tokenizer_config.json", model_max_length=19)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    inputs = [tokenizer(*pair, truncation=True, return_tensors="pt") for pair in PAIRS]
    with torch.no_grad():
        logits = torch.cat([reference(**one).logits for one in inputs])
    expected = logits.sigmoid() if labels == 1 else logits.softmax(-1)
    long_pairs = [pair for pair in PAIRS if len(tokenizer(*pair).input_ids) > 19]
    assert 0 < len(long_pairs) < len(PAIRS)
    run_dir, exported_dir = round_trip(checkpoint)
    assert transformers.AutoTokenizer.from_pretrained(exported_dir).model_max_length == 19
    for directory in (checkpoint, run_dir, exported_dir):
        scores = [[*one.probabilities.values()] for one in ph.load(directory).classify(PAIRS)]
        torch.testing.assert_close(torch.tensor(scores), expected, rtol=1e-5, atol=1e-5)
    capsys.readouterr()
    pairs = write_pairs(tmp_path / "pairs.tsv")
    assert main(["classify", str(checkpoint), pairs, "--read-batch", "2"]) == 0
    output = capsys.readouterr()
    message = (
        f"polyhead: truncated to 19 tokens: {len(long_pairs)} of {len(PAIRS)} texts; the longest is line "
    )
    assert output.err.startswith(message) and len(output.out.splitlines()) == len(PAIRS)
    with serve_run(ph.load(checkpoint)) as live:
        for options, status in (({}, 400), ({"truncate": True}, 200)):
            assert live.ask("/v1/classify", {"input": long_pairs[:1], **options}).status_code == status
