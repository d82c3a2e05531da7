import pytest


@pytest.mark.parametrize("options", [["--n-best", "2", "--scores"], ["--read-batch", "2"]])
def test_file_has_the_standard_output(options, tiny, source, tmp_path, translate, cli):
    """`mistakes.txt` has the refusals."""
    expected, out = translate(tiny, source, *options), tmp_path / "new" / "out.txt"
    assert translate(tiny, source, *options, "--output", out) == []
    assert out.read_text().split("\n") == [*expected, ""]
    assert [path.name for path in out.parent.iterdir()] == ["out.txt"]
    assert "is an input" in cli.error("translate", tiny, source, "--output", tiny / "config.json")
