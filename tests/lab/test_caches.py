import json

import pytest
from tests.lab.caches_helpers import TEXT, make_run, save_run

from polyhead import load
from polyhead.cli import main
from polyhead.evaluate.metrics import KNOWN_METRICS, score_translations
from polyhead_lab.models import ModelUnderTest, make_eval_rows


@pytest.fixture
def run_caches(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)

    def run_one(run_dir, *files, limit="2"):
        texts = [word for file in files or ["text.txt"] for word in ("--text", str(tmp_path / file))]
        options = ["--run", str(run_dir), *texts, "--limit", limit]
        assert main(["experiments", "caches", *options, "--out", str(tmp_path / "out")]) == 0
        result = json.loads((tmp_path / "out/caches.json").read_text())
        assert result["given"] == options
        return result

    return run_one


def test_language_model_has_every_cache(run_caches, tmp_path):
    result = run_caches(save_run(tmp_path / "run"))
    assert "the language model run on text.txt" in result["lead"]
    names = [row[0] for row in result["figures"][2]["rows"]]
    assert names[:5] == ["static", "growing", "paged", "8 bits", "4 bits"]
    assert result["claims"][0]["is_supported"] is True
    assert (tmp_path / "out/caches-low-rank.safetensors").is_file()
    assert f"--text {tmp_path}/text.txt" in (tmp_path / "out/caches.html").read_text()


def test_model_with_state_has_one_row(run_caches, tmp_path):
    result = run_caches(save_run(tmp_path / "run", attention="linear", position="none"))
    assert [row[0] for row in result["figures"][2]["rows"]] == ["state"]
    assert [claim["is_supported"] for claim in result["claims"]] == [True]
    assert not (tmp_path / "out/caches-low-rank.safetensors").exists()


def test_translator_has_bleu(run_caches, tmp_path):
    lines = TEXT.splitlines()[:12]
    run_dir = save_run(tmp_path / "run", "encoder-decoder")
    outputs = load(run_dir).translate(lines, beam_size=1)
    references = [f"{output} {line}" for output, line in zip(outputs, lines, strict=True)]  # in part correct
    for name, texts in (("a", lines), ("b", references)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in texts))
    table = run_caches(run_dir, "a", "b", limit="4")["figures"][2]
    assert "BLEU with references" in table["caption"]
    score = float(table["rows"][0][table["head"].index("BLEU")])
    assert 1 < score < 100
    expected = score_translations(KNOWN_METRICS["bleu"], outputs[4:8], references[4:8])
    assert score == pytest.approx(expected.value, abs=0.01)
    table = run_caches(run_dir, "a", limit="4")["figures"][2]
    assert "BLEU with the output of static" in table["caption"]


def test_windows_of_text_are_consecutive():
    run = make_run(lines=tuple(TEXT.splitlines()))
    (ids,) = run.tokenizer.encode([TEXT])
    rows = make_eval_rows(ModelUnderTest(run, "it", [TEXT], []), 3, 8)
    assert rows.input_ids.tolist() == [ids[i : i + 8] for i in (0, 9, 18)]
    assert rows.labels.tolist() == [ids[i + 1 : i + 9] for i in (0, 9, 18)]
