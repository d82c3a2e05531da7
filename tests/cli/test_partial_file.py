from tests.cli.conftest import LINES

from polyhead.core.errors import UserError
from polyhead.run.run import Run


def test_partial_output_has_its_own_name(tiny, source, tmp_path, translate, cli, monkeypatch, file_limit):
    """Of a verb that is interrupted, that fails, or whose disk is full (here: the largest allowed file)."""
    expected, out, part = translate(tiny, source), tmp_path / "out.txt", tmp_path / "out.txt.part"
    command = ["translate", tiny, source, "--output", out]
    message = f"the translations of the first 4 texts are in {part}"
    hypotheses = Run.hypotheses

    def raise_at_last_line(error):
        def run(self, texts, **options):
            if LINES[-1] in texts:
                raise error
            return hypotheses(self, texts, **options)

        monkeypatch.setattr(Run, "hypotheses", run)

    raise_at_last_line(KeyboardInterrupt())
    assert message in cli(*command, "--read-batch", 2, code=130).err
    assert part.read_text().split("\n") == [*expected[:4], ""] and not out.exists()

    monkeypatch.setattr(Run, "hypotheses", hypotheses)
    with file_limit(part.stat().st_size + 1):
        err = cli(*command, "--read-batch", 2, code=1).err
    assert message in err and f"polyhead: {part}: File too large" in err
    assert part.read_text().split("\n") == [*expected[:4], ""]

    raise_at_last_line(UserError("these weights are damaged"))
    assert message in cli(*command, "--read-batch", 2, code=2).err
    source.write_text(LINES[-1] + "\n")
    cli(*command, code=2)
    assert not out.exists() and not part.exists()
