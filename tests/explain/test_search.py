import math
from itertools import pairwise

import pytest
import torch
from tests.explain.explain_helpers import TARGET, TEXT, explain_walk, make_run

from polyhead.explain.search import MAX_NEW_TOKENS, explain_search
from polyhead.generation.detokenizer import decode_complete_chars

LENGTHS = {"max_length_ratio": 0.0, "max_length_extra": 6}


def search(run):
    return explain_search(run, run.tokenizer.encode([TEXT])[0])


@pytest.mark.parametrize("settings", [{"beam_size": 1}, {"beam_size": 3, "n_best": 3}])
def test_translation_matches_hypotheses(settings):
    run = make_run(generation=LENGTHS | settings)
    result = search(run)
    (hypotheses,) = run.hypotheses([TEXT])
    assert [one["ids"] for one in result["outputs"]] == [one.tokens for one in hypotheses]
    assert [one["score"] for one in result["outputs"]] == pytest.approx([one.score for one in hypotheses])
    assert result["method"] == ("greedy" if settings["beam_size"] == 1 else "beam")
    for one in result["outputs"]:
        length = len(one["ids"]) + (len(one["ids"]) < 6)  # after the six tokens allowed is no end token
        assert one["length"] == length
        assert one["score"] == pytest.approx(one["log_prob"] / length ** result["settings"]["length_penalty"])


def test_beam_search_steps_are_consistent():
    """Beams are the kept candidates of the step before, with their totals, and the model's probabilities."""
    run = make_run(generation=LENGTHS | {"beam_size": 3})
    steps = search(run)["steps"]
    assert len(steps) > 2
    t = run.tokenizer
    source = torch.tensor([[*t.encode([TEXT])[0], t.eos_id]])
    for step, next_step in pairwise(steps):
        beams = step["beams"]
        rows = [[*beams[choice["beam"]]["tokens"], choice["id"]] for choice in step["chosen"]]
        assert [beam["tokens"] for beam in next_step["beams"]] == rows
        candidates = [(beam["tokens"], one) for beam in beams for one in beam["candidates"] if one["kept"]]
        totals = {(*tokens, one["id"]): one["total"] for tokens, one in candidates}
        for beam in next_step["beams"]:
            assert totals[tuple(beam["tokens"])] == pytest.approx(beam["log_prob"], abs=1e-5)
        for beam in beams:
            with torch.inference_mode():
                p = run.model(source, torch.tensor([[t.bos_id, *beam["tokens"]]]))[0, -1].softmax(-1)
            for one in beam["candidates"]:
                assert one["p"] == pytest.approx(float(p[one["id"]]), abs=1e-6)
                assert one["ends"] == (one["id"] == t.eos_id)


def test_sampled_continuation_matches_generate():
    run = make_run(kind="decoder", generation={"temperature": 0.7, "top_k": 5, "max_new_tokens": 8})
    result = search(run)
    assert result["method"] == "sampling"
    ids = result["outputs"][0]["ids"]
    assert run.generate([TEXT], seed=0) == decode_complete_chars(run.tokenizer, [ids])
    for step in result["steps"]:
        candidates = step["beams"][0]["candidates"]
        q = [one["q"] for one in candidates]
        assert sum(x > 0 for x in q) == 5 and math.fsum(q) == pytest.approx(1)
        assert [one["id"] for one in candidates if one["kept"]] == [choice["id"] for choice in step["chosen"]]
    greedy = search(make_run(kind="decoder", generation={"temperature": 0}))
    assert greedy["method"] == "greedy" and len(greedy["steps"]) <= MAX_NEW_TOKENS
    assert all(step["beams"][0]["candidates"][0]["kept"] for step in greedy["steps"])
    # a full context has none
    run = make_run(kind="decoder", max_len=20)
    n = len(run.prompt_template.build_prompt(run.tokenizer.encode([TEXT])[0]))
    full = make_run(kind="decoder", max_len=n)
    assert search(full) is None
    assert explain_walk(full)["generation"] is None


def test_output_and_teacher_forced_target_have_own_probabilities():
    run = make_run(generation=LENGTHS | {"beam_size": 1})
    document = explain_walk(run, TEXT, TARGET)
    free, output = document["generation"]["free"], document["generation"]["outputs"][0]
    log_probs = [math.log(token["p"]) for token in free]
    n = len(output["ids"])
    # with or without the end token
    assert output["log_prob"] in (pytest.approx(sum(log_probs[:m]), abs=1e-4) for m in (n, n + 1))
    positions = [p["expected"] for p in document["output"]["positions"]]
    assert [one["id"] for one in positions] == document["sides"][1]["next"]
    (score,) = run.score([TEXT], [TARGET])
    assert sum(math.log(one["p"]) for one in positions) == pytest.approx(score.log_prob, abs=1e-4)
    keys = ("id", "rank", "p")
    assert [[one[key] for key in keys] for one in document["generation"]["teacher"]] == [
        [one["id"], one["rank"], pytest.approx(one["p"], rel=1e-5)] for one in positions
    ]
    # the output is the default target
    document = explain_walk(make_run(generation=LENGTHS | {"beam_size": 2}))
    assert document["inputs"]["target_is"] == "output" and "teacher" not in document["generation"]
    expected = [p["expected"]["p"] for p in document["output"]["positions"]]
    assert expected == pytest.approx([token["p"] for token in document["generation"]["free"]], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_output_at_length_limit_is_truncated(seed):
    run = make_run(seed, position="learned", max_len=24, generation={"max_length_extra": 99})
    document = explain_walk(run, "a dog")
    n = len(document["sides"][1]["tokens"])
    assert n <= 24
    assert len(document["generation"]["free"]) >= n
