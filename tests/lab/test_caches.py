"""Divergence of caches against what is written out by hand, by the whole forward pass and by other models."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.lab.cache_claims import format_change, loss_changes, lossless_claim, make_cache_claims
from polyhead.lab.cache_policies import Policy, make_window_choice, select_policies
from polyhead.lab.divergence import (
    Divergence,
    decode_greedy,
    kl_divergence,
    measure_divergence,
    token_agreement,
)
from polyhead.lab.eval_rows import EvalRows, make_eval_rows
from polyhead.lab.pareto_plot import find_best_points, make_point_labels, render_pareto_plot
from polyhead.lab.result import ParetoPlot
from polyhead.lab.test_model import ModelUnderTest
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

ONE = Fraction(1)
TEXT = (
    "".join(
        f"{a} {b} barks at {c} .\n" for a in ("a", "the") for b in ("dog", "cat") for c in ("me", "you", "it")
    )
    * 4
)


def model(kind: str = "decoder", **changes: Any) -> Any:
    sizes = {
        "vocab_size": 40,
        "d_model": 16,
        "n_heads": 2,
        "n_layers": 2,
        "d_ff": 24,
        "max_len": 32,
        "position": "rope",
    }
    made = build(ModelConfig(kind=kind, **{**sizes, **changes}), seed=1).eval()
    with torch.no_grad():  # larger weights, so that what is forgotten makes a difference
        for p in made.parameters():
            p.mul_(2.0)
    return made


def some_rows(n: int = 3, length: int = 12) -> EvalRows:
    ids = torch.randint(3, 40, (n, length + 1), generator=torch.Generator().manual_seed(0))
    return EvalRows(ids[:, :-1], torch.arange(length).expand(n, -1), ids[:, 1:])


def ragged_pairs() -> EvalRows:
    """Three targets of 7, 4 and 1 tokens, with sources of 5, 3 and 5."""
    draw = torch.Generator().manual_seed(0)
    read, wanted, source = (torch.randint(3, 40, (3, n), generator=draw) for n in (7, 7, 5))
    lengths, sources = torch.tensor([[7], [4], [1]]), torch.tensor([[5], [3], [5]])
    at, back = torch.arange(7), torch.arange(5)
    return EvalRows(read, torch.where(at < lengths, at, -1), wanted.masked_fill(at >= lengths, IGNORE_INDEX), source,
                torch.where(back < sources, back, -1))  # fmt: skip


def the_run(directory: Path, kind: str = "decoder", **changes: Any) -> Path:
    tokens = train_tokenizer(TEXT.splitlines(), Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48}
    made = build(ModelConfig(kind=kind, vocab_size=tokens.vocab_size, **(sizes | changes)), seed=1)
    Run(made, tokens, GenerationConfig(max_length_ratio=1.0, max_length_extra=3)).save(directory)
    return directory


def test_the_divergence_is_that_of_the_definition():
    p, q = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    wanted = [0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75), math.log(2)]
    assert kl_divergence(p.log(), q.log()).tolist() == pytest.approx(wanted, rel=1e-6)
    assert kl_divergence(q.log(), q.log()).tolist() == [0.0, 0.0]


def test_what_keeps_everything_diverges_by_nothing():
    chosen = [Policy(name, ONE, Choice(name)) for name in ("static", "growing", "paged")]
    found, _ = measure_divergence(model(), chosen, some_rows())
    for one in found.values():
        assert max(one.kl) < 1e-11
        assert one.top1_agreement == [1.0] * 3
    assert lossless_claim(found, list(found)).is_supported is True


def test_perplexity_is_that_of_the_whole_forward_pass():
    lm, read = model(), some_rows()
    found, plain = measure_divergence(lm, [Policy("static", ONE, Choice("static"))], read)
    loss = F.cross_entropy(
        lm(read.input_ids).detach().flatten(0, 1), read.labels.flatten(), reduction="none"
    ).view(3, -1)
    assert plain.nll == pytest.approx(loss.mean(1).tolist(), rel=1e-5)
    assert plain.perplexity == pytest.approx(float(loss.mean().exp()), rel=1e-5)
    assert found["static"].nll == pytest.approx(plain.nll, rel=1e-5)


def test_padding_of_a_translator_counts_nowhere():
    translator, read = model("encoder-decoder"), ragged_pairs()
    found, plain = measure_divergence(translator, [Policy("static", ONE, Choice("static"))], read)
    assert found["static"].token_counts == plain.token_counts == [7, 4, 1]
    for i, n in enumerate(plain.token_counts):  # each pair alone, cut to what it is
        s = int((read.source_pos[i] >= 0).sum())
        logits = translator(read.source[i : i + 1, :s], read.input_ids[i : i + 1, :n]).detach()
        wanted = F.cross_entropy(logits[0], read.labels[i, :n])
        assert plain.nll[i] == pytest.approx(float(wanted), rel=1e-4)
    total = sum(a * n for a, n in zip(plain.nll, plain.token_counts, strict=True)) / 12
    assert plain.perplexity == pytest.approx(math.exp(total))
    assert max(found["static"].kl) < 1e-11


def test_a_window_diverges_as_a_model_whose_attention_has_it():
    lm, read = model(), some_rows()
    narrow = model(attention={"name": "softmax", "window": 4, "sink": 1})
    narrow.load_state_dict(lm.state_dict())
    found, _ = measure_divergence(lm, [Policy("window", ONE, Choice("window", window=4, sink=1))], read)
    p, q = (m(read.input_ids).detach().double().log_softmax(-1) for m in (lm, narrow))
    wanted = F.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    assert float(wanted.max()) > 1e-3  # it does make a difference
    assert found["window"].kl == pytest.approx(wanted.mean(1).tolist(), rel=1e-4)
    assert found["window"].kl_by_position.tolist() == pytest.approx(
        wanted.mean(0).tolist(), rel=1e-4, abs=1e-9
    )
    same = (p.argmax(-1) == q.argmax(-1)).double().mean(1).tolist()
    assert found["window"].top1_agreement == pytest.approx(same)


def test_the_divergence_by_place_leaves_padding_out():
    translator, read = model("encoder-decoder"), ragged_pairs()
    found, _ = measure_divergence(
        translator, [Policy("window", ONE, Choice("window", window=1, sink=0))], read
    )
    one = found["window"]
    reach = torch.tensor([3, 2, 2, 2, 1, 1, 1])  # texts of 7, 4 and 1 tokens
    assert float((one.kl_by_position * reach).sum()) == pytest.approx(
        sum(kl * n for kl, n in zip(one.kl, one.token_counts, strict=True))
    )
    assert float(one.kl_by_position[1:].min()) > 0
    assert len(one.kl_by_position) == 7


def test_bytes_are_those_of_the_closed_form():
    found, _ = measure_divergence(
        model(), [Policy("window", ONE, Choice("window", window=4, sink=1))], some_rows()
    )
    held = found["window"].memory
    assert held is not None
    # 3 rows of 5 slots: keys and values of 2 layers, 2 heads of 8 numbers of 4 bytes; the position once
    assert held.used_bytes == held.peak_bytes == 3 * 5 * (2 * 2 * 2 * 8 * 4 + 8)


def test_texts_go_on_as_by_the_whole_forward_pass():
    lm, prompts = model(), some_rows(2, 6).input_ids
    seen = prompts
    for _ in range(5):
        seen = torch.cat([seen, lm(seen)[:, -1].argmax(-1, keepdim=True)], 1)
    assert decode_greedy(lm, Choice("paged", block_size=2), prompts, 5).tolist() == seen[:, 6:].tolist()


def test_equal_tokens_are_counted_place_by_place():
    assert token_agreement([[1, 2, 3], [1], [], [4, 5]], [[1, 9, 3, 7], [1], [], [5, 4]]) == [
        0.5,
        1.0,
        1.0,
        0.0,
    ]


def test_a_model_that_keeps_a_state_has_one_cache():
    shape = model(attention="linear", position="none").cache_shape
    chosen, refused = select_policies(shape, 64, None)
    assert ([p.choice.name for p in chosen], refused) == (["state"], {})


def test_budgets_are_shares_of_the_length_and_what_is_refused_is_told():
    chosen, refused = select_policies(model().cache_shape, 64, None)
    assert not refused
    options = {p.name: p.choice.options for p in chosen}
    assert options["h2o 1/4"] == {"budget": 16, "recent": 8, "sink": 0}
    assert options["window+sink 1/8"] == {"window": 6, "sink": 2}
    assert options["window 1/8"] == {"window": 8, "sink": 0}
    assert make_window_choice(32, True) == Choice("window", window=28, sink=4)
    assert make_window_choice(3, True) == Choice("window", window=3, sink=0)
    _, refused = select_policies(model(position="alibi").cache_shape, 64, None)
    assert set(refused) == {"subgen 1/2", "subgen 1/4", "subgen 1/8"}
    assert all("alibi" in why for why in refused.values())


def test_claims_follow_the_numbers():
    plain = Divergence(nll=[1.0, 1.1, 0.9], token_counts=[5, 5, 5])
    bad = Divergence(
        kl=[0.5, 0.6, 0.55], nll=[2.0, 2.1, 1.9], top1_agreement=[0.5] * 3, token_counts=[5, 5, 5]
    )
    good = Divergence(kl=[1e-9] * 3, nll=[1.0, 1.1, 0.9], top1_agreement=[1.0] * 3, token_counts=[5, 5, 5])
    chosen = [Policy(name, ONE, Choice("window")) for name in ("static", "window 1/4", "window+sink 1/4")]
    broken = make_cache_claims(
        [chosen[0]._replace(family="static"), *chosen[1:]],
        {"static": good, "window 1/4": bad, "window+sink 1/4": good},
        plain,
    )
    # exact, breaks, sink better, sink keeps
    assert [claim.is_supported for claim in broken] == [True, True, True, True]
    intact = make_cache_claims(
        [chosen[0]._replace(family="static"), *chosen[1:]],
        {"static": bad, "window 1/4": good, "window+sink 1/4": bad},
        plain,
    )
    assert [claim.is_supported for claim in intact] == [False, False, False, False]
    assert loss_changes(bad, plain) == pytest.approx([1.0] * 3)
    assert format_change([math.log(1.5)] * 2).startswith("+50 ")
    assert format_change([math.log(3)] * 2).startswith("+200 ")
    assert format_change([1e-9, -1e-9]) == "none"
    uneven = Divergence(
        nll=[2.0, 1.1], token_counts=[9, 1]
    )  # the mean of the changes is the change of the perplexity
    other = Divergence(nll=[1.5, 1.4], token_counts=[9, 1])
    assert sum(loss_changes(uneven, other)) / 2 == pytest.approx(
        math.log(uneven.perplexity / other.perplexity)
    )


FRONT = ParetoPlot("t", "KiB", "KL", {"a": [("a", 100.0, 1e-12), ("a 1/2", 50.0, 1e-3)], "b <i>": [("b <i> 1/2", 60.0, 1e-2), ("b <i> 1/4", 10.0, 1.0)]})  # fmt: skip


def test_the_front_has_those_that_no_other_one_beats():
    assert [dot.name for dot in find_best_points(FRONT)] == ["b <i> 1/4", "a 1/2", "a"]
    # both no more than rounding
    equal = ParetoPlot("t", "x", "y", {"a": [("a", 2.0, 1e-12)], "b": [("b", 1.0, 1e-9)]})
    assert [dot.name for dot in find_best_points(equal)] == ["b"]


def test_points_of_the_front_stand_where_their_values_are():
    assert make_point_labels(FRONT) == ["a", "1/2", "b <i> 1/2", "1/4"]
    svg = render_pareto_plot(FRONT, 900, 460)
    assert "<i>" not in svg
    places = [
        (float(x), float(y)) for x, y in re.findall(r'class="dot c\d" cx="([\d.]+)" cy="([\d.]+)"', svg)
    ]
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = places
    # logarithms of both: from 100 to 10 is as far as twice half of it; the error below the floor stands at the floor
    assert (x0 - x1) / (x0 - x3) == pytest.approx(math.log10(2), abs=2e-3)
    assert (y1 - y0) / (y3 - y0) == pytest.approx(4 / 7, abs=2e-3)
    assert (y2 - y0) / (y3 - y0) == pytest.approx(5 / 7, abs=2e-3)
    assert x3 < x1 < x2 < x0
    assert y0 < y1 < y2 < y3  # better is up


def test_windows_of_a_text_follow_each_other(tmp_path):
    from polyhead import load

    run = load(the_run(tmp_path / "run"))
    (ids,) = run.tokenizer.encode([TEXT])
    read = make_eval_rows(ModelUnderTest(run, "it", [TEXT], []), 3, 8)
    assert read.input_ids.tolist() == [ids[i : i + 8] for i in (0, 9, 18)]
    assert read.labels.tolist() == [ids[i + 1 : i + 9] for i in (0, 9, 18)]


def words(capsys: Any) -> str:
    err: str = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err


def test_a_model_of_ones_own_goes_in_and_pages_come_out(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    given = ["--run", str(the_run(tmp_path / "run")), "--text", str(tmp_path / "text.txt"), "--limit", "2"]
    assert main(["lab", "caches", *given, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out/caches.json").read_text())
    assert found["given"] == given
    assert "the language model run on text.txt" in found["lead"]
    table = found["figures"][2]
    assert [row[0] for row in table["rows"]][:5] == ["static", "growing", "paged", "8 bits", "4 bits"]
    assert found["claims"][0]["is_supported"] is True
    assert (tmp_path / "out/caches-low-rank.safetensors").is_file()
    assert f"--text {tmp_path}/text.txt" in (tmp_path / "out/caches.html").read_text()


def test_a_model_that_keeps_a_state_has_a_page_of_one_line(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    run = the_run(tmp_path / "run", attention="linear", position="none")
    given = ["--run", str(run), "--text", str(tmp_path / "text.txt"), "--limit", "2"]
    assert main(["lab", "caches", *given, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out/caches.json").read_text())
    assert [row[0] for row in found["figures"][2]["rows"]] == ["state"]
    assert [claim["is_supported"] for claim in found["claims"]] == [True]
    assert not (tmp_path / "out/caches-low-rank.safetensors").exists()


def test_a_translator_has_bleu_against_references(tmp_path):
    from polyhead import load
    from polyhead.evaluate.translation_metrics import bleu

    lines = TEXT.splitlines()[:12]
    run = str(the_run(tmp_path / "run", "encoder-decoder"))
    outputs = load(run).translate(lines, beam_size=1)
    # so that some of it is right
    references = [f"{output} {line}" for output, line in zip(outputs, lines, strict=True)]
    for name, texts in (("a", lines), ("b", references)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in texts))
    texts = ["--text", str(tmp_path / "a"), "--text", str(tmp_path / "b")]
    assert main(["lab", "caches", "--run", run, *texts, "--limit", "4", "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out/caches.json").read_text())
    assert "BLEU" in found["figures"][2]["head"]
    assert "BLEU against references" in found["figures"][2]["caption"]
    at = found["figures"][2]["head"].index("BLEU")
    assert 1 < float(found["figures"][2]["rows"][0][at]) < 100
    assert float(found["figures"][2]["rows"][0][at]) == pytest.approx(
        bleu(outputs[4:8], references[4:8]).value, abs=0.01
    )
    assert (
        main(["lab", "caches", "--run", run, *texts[:2], "--limit", "4", "--out", str(tmp_path / "out")]) == 0
    )
    found = json.loads((tmp_path / "out/caches.json").read_text())
    assert "BLEU against what static says" in found["figures"][2]["caption"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["scaling", "--run", "r", "--text", "t"],
            "experiment 'scaling' makes its own models and text; for yours there are: caches, paging",
        ),
        (["all", "--run", "r", "--text", "t"], "makes its own models and text"),
        (["caches", "--text", "t"], "give it, --run RUN"),
        (["caches", "--limit", "3"], "give it, --run RUN"),
        (["caches", "--run", "r"], "on what text? give --text FILE"),
        (["caches", "--run", "nowhere", "--text", "t"], "no run directory 'nowhere'"),
    ],
)
def test_what_does_not_go_together_is_told_in_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["lab", *arguments]) == 2
    assert said in words(capsys)


def test_a_model_without_decoder_and_a_short_text_are_refused(tmp_path, capsys):
    (tmp_path / "t").write_text("a dog .\n")
    at = ["--text", str(tmp_path / "t"), "--out", str(tmp_path / "out")]
    assert main(["lab", "caches", "--run", str(the_run(tmp_path / "e", "encoder")), *at]) == 2
    assert "has no decoder" in words(capsys)
    assert main(["lab", "caches", "--run", str(the_run(tmp_path / "d")), *at]) == 2
    assert "at least two windows of 49" in words(capsys)
    assert (
        main(["lab", "caches", "--run", str(the_run(tmp_path / "d")), "--text", str(tmp_path / "nothing")])
        == 2
    )
    assert "no file 'nothing'" in words(capsys)
