"""Tests of cli/usage_errors.py."""

import pytest

from polyhead.cli.verbs import VERBS


def test_unknown_verb_names_the_nearest(cli):
    assert cli.error("trian") == "unknown verb 'trian'; did you mean 'train'?"
    assert cli.error("xyzzy") == f"unknown verb 'xyzzy'; known: {', '.join(VERBS)}"


KEYS = "Recipe keys are written KEY=VALUE"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("env --nope", "no option --nope"),
        ("eval runs/x --beamsize 3", "no option --beamsize; did you mean '--beam-size'?"),
        ("train a.yaml --beam 3", f"no option --beam; did you mean 'generation.beam_size'? {KEYS}"),
        ("train a.yaml --beamsize 3", "no option --beamsize"),  # not '--resume'
        ("train a.yaml --epochs 3", f"no option --epochs; did you mean 'train.epochs'? {KEYS}"),
        ("train a.yaml --model.d_model 3", f"no option --model.d_model. {KEYS}"),
        ("train a.yaml --proceses 3", "no option --proceses; did you mean '--processes'?"),
        ("generate runs/x --max-length 3", "no option --max-length; did you mean '--max-new-tokens'?"),
        ("translate runs/x a --num-beams 3", "no option --num-beams; did you mean '--beam-size'?"),
        ("env x", "got unexpected extra argument (x)"),
        ("train", "RECIPE: missing"),
        ("attention runs/x", "TEXT: missing"),
        ("convert-gqa runs/x runs/y", "--kv-heads: missing"),
        ("translate runs/x --beam-size no", "--beam-size: 'no' is not an integer"),
        ("generate runs/x a -n no", "--n: 'no' is not an integer"),
        ("eval runs/x --split no", "--split: 'no' is not one of 'test', 'valid'"),
        ("translate runs/x --cache", "option '--cache' requires an argument"),
    ],
)
def test_invalid_usage_is_one_line(command, message, cli):
    verb, *arguments = command.split()
    assert cli.error(verb, *arguments) == f"{message} (polyhead {verb} --help)"
