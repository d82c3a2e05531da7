import pytest
from tests.generation.run_helpers import ends_inside_character, make_byte_run, make_run

from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.generation.translation import decode_translations

MARK = "\ufffd"
PROMPTS = ["你好", "a dog", "🙂"]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 1}])
def test_translations_have_no_partial_character(options, tmp_path, capsys):
    run = make_byte_run("encoder-decoder", seed=4)
    hypotheses = run.hypotheses(PROMPTS, n_best=3, **options)
    texts = run.translate(PROMPTS, n_best=3, **options)
    plain = [run.tokenizer.decode([h.tokens for h in row]) for row in hypotheses]
    assert texts == [[text.rstrip(MARK) for text in row] for row in plain]
    assert ends_inside_character(run, [h.tokens for row in hypotheses for h in row])
    if options:
        return
    assert run.translate(PROMPTS) == [row[0] for row in texts]
    run.save(tmp_path / "run")
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in PROMPTS))
    assert main(["translate", str(tmp_path / "run"), str(tmp_path / "in.txt")]) == 0
    assert not any(line.endswith(MARK) for line in capsys.readouterr().out.splitlines())


def test_long_sources_are_refused_unless_truncated():
    run = make_run("encoder-decoder")

    def decode(text, **options):
        arguments = run.model, run.tokenizer, run.generation, [text], 48, None
        ((_, hypotheses),) = decode_translations(*arguments, **options)
        return [h.tokens for h in hypotheses]

    with pytest.raises(UserError, match=r"line 1 has .* maximum is 47"):
        decode("dogs " * 60)
    assert decode("dogs " * 60, truncate=True) == decode("dogs " * 70, truncate=True)
    assert decode("dogs") == decode("dogs", truncate=True)
