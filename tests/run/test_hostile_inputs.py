import random

import pytest
from tests.run.hostile_helpers import generate, run_apart
from tests.run.run_helpers import TEXTS, make_run

from polyhead.cli import main

SEED = 23
N_EACH = {"tokenizer": 110, "roles": 25, "config": 40, "published": 30, "generation": 25, "weights": 30}
N_EACH |= {"recipe": 25, "template": 15, "text": 30}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    for side, texts in (("src", TEXTS), ("tgt", TEXTS[::-1])):
        (root / f"train.{side}").write_text("\n".join(texts * 4) + "\n")
    (root / "recipe.yaml").write_text(
        f"task: translation\ndata: {{train: [{root}/train.src, {root}/train.tgt], valid_fraction: 0.5}}\n"
        "model: {d_model: 16, n_heads: 2, n_layers: 1, d_ff: 32}\ntokenizer: {kind: bpe, vocab_size: 290}\n"
        f"train: {{steps: 2, max_tokens: 200}}\nout: {root}/translator\n"
    )
    assert main(["train", str(root / "recipe.yaml")]) == 0
    like_gpt2 = {"kind": "decoder", "norm_first": True, "position": "learned", "scale_embedding": False}
    like_gpt2 |= {"feed_forward": {"name": "gelu", "tanh": True}}
    make_run(**like_gpt2).save(root / "lm")
    assert main(["export", str(root / "lm"), str(root / "published")]) == 0
    return {"translator": root / "translator", "published": root / "published"}


def find_problem(outcome, hostile):
    lines = outcome.errors.splitlines()
    signs = ("Traceback", "panicked", "bug in Polyhead", "out of memory", "stack backtrace")
    if outcome.code not in (0, 2) or any(sign in outcome.errors for sign in signs):
        return f"exit code {outcome.code}"
    refusals = [line for line in lines if line.startswith("polyhead: ")]
    if outcome.code == 2 and (not refusals or lines[-1] != refusals[-1] or len(lines) > 3):
        return f"{len(lines)} lines of errors"
    n_lines, n_outputs = hostile.text.count(b"\n"), outcome.output.count("\n")
    if outcome.code == 0 and hostile.files and n_outputs != n_lines:
        return f"{n_outputs} lines of output for {n_lines} of input"
    return ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", N_EACH)
def test_hostile_inputs_do_not_crash(kind, directories):
    rng, is_published = random.Random(f"{SEED} {kind}"), kind in ("published", "template")
    directory = directories["published" if is_published else "translator"]
    verb = ["generate", "RUN", "-", "--max-new-tokens", "4"] if is_published else ["translate", "RUN"]
    problems, codes = [], []
    for hostile in generate(rng, kind, N_EACH[kind], directory):
        outcome = run_apart(verb, directory, hostile)
        codes.append(outcome.code)
        if problem := find_problem(outcome, hostile):
            problems.append((hostile.name, problem, outcome.errors[-600:]))
    assert not problems, "\n".join(map(str, problems))
    assert kind in ("text", "template") or codes.count(2) > len(codes) // 4, codes
