"""Tests of cli/usage_errors.py."""

from __future__ import annotations

import pytest

from polyhead.cli import main
from polyhead.cli.verbs import VERBS


def test_an_unknown_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "polyhead: unknown verb 'trian'; did you mean 'train'?\n"
    assert main(["xyzzy"]) == 2
    assert capsys.readouterr().err == f"polyhead: unknown verb 'xyzzy'; known: {', '.join(VERBS)}\n"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("env --nope", "no option --nope"),
        ("eval runs/x --beamsize 3", "no option --beamsize; did you mean '--beam-size'?"),
        (
            "train a.yaml --beam 3",
            "no option --beam; did you mean 'generation.beam_size'? Recipe keys are written KEY=VALUE",
        ),
        ("train a.yaml --beamsize 3", "no option --beamsize"),  # not '--resume'
        (
            "train a.yaml --epochs 3",
            "no option --epochs; did you mean 'train.epochs'? Recipe keys are written KEY=VALUE",
        ),
        (
            "train a.yaml --model.d_model 3",
            "no option --model.d_model. Recipe keys are written KEY=VALUE",
        ),
        ("train a.yaml --proceses 3", "no option --proceses; did you mean '--processes'?"),
        ("generate runs/x --max-length 3", "no option --max-length; did you mean '--max-new-tokens'?"),
        ("translate runs/x a --num-beams 3", "no option --num-beams; did you mean '--beam-size'?"),
        ("env x", "got unexpected extra argument (x)"),
        ("train", "RECIPE: missing"),
        ("attention runs/x", "TEXT: missing"),
        ("convert-gqa runs/x runs/y", "--kv-heads: missing"),
        (
            "translate runs/x --read-batch 0",
            "--read-batch: '0' is out of range: should be greater than or equal to 1",
        ),
        ("generate runs/x a -n no", "--n: 'no' is not an integer"),
        (
            "experiments caches --limit 1",
            "--limit: '1' is out of range: should be greater than or equal to 2",
        ),
        ("eval runs/x --split no", "--split: 'no' is not one of 'test', 'valid'"),
        ("translate runs/x --cache", "option '--cache' requires an argument"),
    ],
)
def test_what_a_verb_does_not_take_is_said_in_one_line(
    typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *rest = typed.split()
    assert main([verb, *rest]) == 2
    assert capsys.readouterr().err == f"polyhead: {said} (polyhead {verb} --help)\n"
