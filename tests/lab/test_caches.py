"""Divergence of caches against what is written out by hand, by the whole forward pass and by other models."""

import json

import pytest
from tests.lab.caches_helpers import TEXT, the_run

from polyhead.cli import main


def test_a_model_of_ones_own_goes_in_and_pages_come_out(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    given = ["--run", str(the_run(tmp_path / "run")), "--text", str(tmp_path / "text.txt"), "--limit", "2"]
    assert main(["experiments", "caches", *given, "--out", str(tmp_path / "out")]) == 0
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
    assert main(["experiments", "caches", *given, "--out", str(tmp_path / "out")]) == 0
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
    assert (
        main(["experiments", "caches", "--run", run, *texts, "--limit", "4", "--out", str(tmp_path / "out")])
        == 0
    )
    found = json.loads((tmp_path / "out/caches.json").read_text())
    assert "BLEU" in found["figures"][2]["head"]
    assert "BLEU with references" in found["figures"][2]["caption"]
    at = found["figures"][2]["head"].index("BLEU")
    assert 1 < float(found["figures"][2]["rows"][0][at]) < 100
    assert float(found["figures"][2]["rows"][0][at]) == pytest.approx(
        bleu(outputs[4:8], references[4:8]).value, abs=0.01
    )
    assert (
        main(
            [
                "experiments",
                "caches",
                "--run",
                run,
                *texts[:2],
                "--limit",
                "4",
                "--out",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    found = json.loads((tmp_path / "out/caches.json").read_text())
    assert "BLEU with the output of static" in found["figures"][2]["caption"]
