import runpy
import sys

import pytest


def test_python_m_polyhead_has_the_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["polyhead", "train", str(tmp_path / "none.yaml")])
    with pytest.raises(SystemExit, match=r"^2$"):
        runpy.run_module("polyhead", run_name="__main__")
    assert capsys.readouterr().err == f"polyhead: {tmp_path / 'none.yaml'}: no such file\n"
