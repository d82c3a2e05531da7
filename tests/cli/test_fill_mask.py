import pytest


def format_predictions(run, text, top_k):
    """The lines of each mask of a text, by the library."""
    masks = run.fill_mask([text], top_k)[0]
    lines = [[f"{p.probability:.4f}\t{p.token}\t{p.text}\n" for p in mask] for mask in masks]
    return "".join("".join(mask) + "\n" for mask in lines)


def test_predictions_are_those_of_the_library(encoder, tmp_path, cli):
    (directory, run), text = encoder, "the <mask> sat on [MASK] mat"
    expected, out = format_predictions(run, text, 2), tmp_path / "out.txt"
    assert cli("fill-mask", directory, text, "--top", 2).out == expected
    assert cli("fill-mask", directory, text, "--top", 2, "--output", out).out == ""
    assert out.read_text() == expected


@pytest.mark.parametrize("read_batch", [2, 64])
def test_lines_without_predictions_are_reported(encoder, tmp_path, cli, read_batch):
    (directory, run), text = encoder, "the <mask> sat"
    (tmp_path / "a.txt").write_text(f"{text}\nsat\n\n<mask>{' the' * 500}\n{text}\n")
    command = ["fill-mask", directory, tmp_path / "a.txt", "--top", 1]
    out, err = cli(*command, "--read-batch", read_batch)
    expected = format_predictions(run, text, 1)
    assert out == f"{expected}\n\n\n{expected}"
    no_mask = "no mask; put <mask> in place of a word; its output is blank"
    second, third, fourth = err.splitlines()
    assert (second, third) == (f"polyhead: line 2: {no_mask}", f"polyhead: line 3: {no_mask}")
    limit = f" tokens, the model's maximum is {run.config.max_len - 2}; its output is blank"
    assert fourth.startswith("polyhead: line 4: ") and limit in fourth
