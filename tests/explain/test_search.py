"""The search that is shown is the one that the run does."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.explain.explain_helpers import TARGET, TEXT, explain_walk, make_run

from polyhead.explain.search import MAX_NEW_TOKENS, explain_search
from polyhead.generation.detokenizer import decode_complete_chars
from polyhead.run.run import Run

LENGTHS = {"max_length_ratio": 0.0, "max_length_extra": 6}


def encode(run: Run, text: str = TEXT) -> list[int]:
    return run.tokenizer.encode([text])[0]


@pytest.mark.parametrize("settings", [{"beam_size": 1}, {"beam_size": 3, "n_best": 3}])
def test_a_translation_is_that_of_the_run(settings: dict[str, Any]) -> None:
    run = make_run(generation=LENGTHS | settings)
    shown = explain_search(run, encode(run))
    assert shown is not None
    (hypotheses,) = run.hypotheses([TEXT])
    assert [one["ids"] for one in shown["outputs"]] == [one.tokens for one in hypotheses]
    assert [one["score"] for one in shown["outputs"]] == pytest.approx([one.score for one in hypotheses])
    assert shown["method"] == ("greedy" if settings["beam_size"] == 1 else "beam")
    for one in shown["outputs"]:
        length = len(one["ids"]) + (
            len(one["ids"]) < 6
        )  # six tokens are the most: then there is no end token
        assert one["length"] == length
        assert one["score"] == pytest.approx(one["log_prob"] / length ** shown["settings"]["length_penalty"])


def test_every_step_of_a_beam_search_follows_from_the_one_before() -> None:
    """Live beams are the kept candidates, with the totals of these, which are the model's own."""
    run = make_run(generation=LENGTHS | {"beam_size": 3})
    shown = explain_search(run, encode(run))
    assert shown is not None
    steps = shown["steps"]
    assert len(steps) > 2
    source = torch.tensor([[*encode(run), run.tokenizer.eos_id]])
    for step, following in pairwise(steps):
        beams = step["beams"]
        rows = [[*beams[choice["beam"]]["tokens"], choice["id"]] for choice in step["chosen"]]
        assert [beam["tokens"] for beam in following["beams"]] == rows
        totals = {
            (tuple(beam["tokens"]), one["id"]): one["total"]
            for beam in beams
            for one in beam["candidates"]
            if one["kept"]
        }
        for beam in following["beams"]:
            *before, last = beam["tokens"]
            assert totals[tuple(before), last] == pytest.approx(beam["log_prob"], abs=1e-5)
        for beam in beams:
            with torch.inference_mode():
                tokens = torch.tensor([[run.tokenizer.bos_id, *beam["tokens"]]])
                p = run.model(source, tokens)[0, -1].softmax(-1)
            for one in beam["candidates"]:
                assert one["p"] == pytest.approx(float(p[one["id"]]), abs=1e-6)
                assert one["ends"] == (one["id"] == run.tokenizer.eos_id)


def test_a_continuation_is_what_the_run_samples() -> None:
    settings = {"temperature": 0.7, "top_k": 5, "max_new_tokens": 8}
    run = make_run(kind="decoder", generation=settings)
    shown = explain_search(run, encode(run))
    assert shown is not None
    assert shown["method"] == "sampling"
    ids = shown["outputs"][0]["ids"]
    assert run.generate([TEXT], seed=0) == decode_complete_chars(run.tokenizer, [ids])
    for step in shown["steps"]:
        (beam,) = step["beams"]
        drawn = [one["q"] for one in beam["candidates"]]
        assert sum(q > 0 for q in drawn) == 5
        assert math.fsum(drawn) == pytest.approx(1)
        (kept,) = [one for one in beam["candidates"] if one["kept"]]
        assert [kept["id"]] == [choice["id"] for choice in step["chosen"]]


def test_a_greedy_continuation_keeps_the_most_likely() -> None:
    run = make_run(kind="decoder", generation={"temperature": 0})
    shown = explain_search(run, encode(run))
    assert shown is not None
    assert shown["method"] == "greedy"
    assert len(shown["steps"]) <= MAX_NEW_TOKENS
    assert all(step["beams"][0]["candidates"][0]["kept"] for step in shown["steps"])


def test_a_text_without_room_for_more_has_no_continuation() -> None:
    run = make_run(kind="decoder", max_len=20)
    n = len(encode(run)) + 1
    full = make_run(kind="decoder", max_len=n)
    prompt = full.prompt_template.build_prompt(encode(full))
    assert explain_search(make_run(kind="decoder", max_len=len(prompt)), encode(run)) is None
    assert explain_walk(make_run(kind="decoder", max_len=len(prompt)), TEXT)["generation"] is None


def test_the_output_under_its_own_prefix_and_the_target_under_teacher_forcing() -> None:
    run = make_run(generation=LENGTHS | {"beam_size": 1})
    document = explain_walk(run, TEXT, TARGET)
    free, output = document["generation"]["free"], document["generation"]["outputs"][0]
    total = sum(math.log(token["p"]) for token in free[: len(output["ids"])])
    lost = output["log_prob"] - total  # that of the end of the sentence, if it was reached
    assert lost == pytest.approx(0, abs=1e-4) or lost == pytest.approx(math.log(free[-1]["p"]), abs=1e-4)
    labels = document["sides"][1]["next"]
    assert [p["expected"]["id"] for p in document["output"]["positions"]] == labels
    (score,) = run.score([TEXT], [TARGET])
    forced = sum(math.log(p["expected"]["p"]) for p in document["output"]["positions"])
    assert forced == pytest.approx(score.log_prob, abs=1e-4)


def test_an_own_output_is_both() -> None:
    run = make_run(generation=LENGTHS | {"beam_size": 2})
    document = explain_walk(run, TEXT)
    assert document["inputs"]["target_is"] == "output"
    expected = [p["expected"]["p"] for p in document["output"]["positions"]]
    assert expected == pytest.approx([token["p"] for token in document["generation"]["free"]], abs=1e-6)


def test_an_own_output_at_the_length_limit_of_the_model_is_shown_as_far_as_it_fits() -> None:
    for seed in range(3):
        run = make_run(seed, position="learned", max_len=24, generation={"max_length_extra": 99})
        document = explain_walk(run, "a dog")
        n = len(document["sides"][1]["tokens"])
        assert n <= 24
        assert len(document["generation"]["free"]) >= n
