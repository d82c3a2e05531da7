from tests.lab.run_helpers import toy as toy

from polyhead_lab.registry import EXPERIMENTS


def test_experiments_are_listed_one_per_line(cli):
    lines = cli("experiments").out.splitlines()
    assert [line.split()[0] for line in lines] == EXPERIMENTS.names()
    assert all(len(line.split()) > 5 and len(line) < 120 for line in lines)


def test_output_directory_is_checked_before_measuring(toy, tmp_path, cli):
    (tmp_path / "file").write_text("")
    assert "is a file" in cli.error("experiments", "toy", "--out", tmp_path / "file")
    assert not toy
