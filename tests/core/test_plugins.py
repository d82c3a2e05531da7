"""Parts of other packages by name: where they are looked for, what is said of those that do not fit, and
what never runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.plugins import LOADED_PLUGINS
from polyhead.core.registry import FEED_FORWARD, NORM
from polyhead.models import build
from polyhead.nn.validate_model import check_model
from polyhead.run.run_directory import read_run_config

MINE = '''
from torch import nn

class Twice(nn.Module):
    """Doubles."""
    def __init__(self, d_model: int, *, factor: float = 2.0):
        super().__init__()
        self.factor = factor
    def forward(self, x, pos=None):
        return x * self.factor

class Loose(nn.Module):
    def __init__(self, d_model, factor=2.0):
        super().__init__()

class Deaf(nn.Module):
    state = None
    def __init__(self, shape, position):
        super().__init__()
        self.linear = nn.Linear(shape.d_model, shape.d_model)
    def remember(self, x, pos):
        return x
    def forward(self, x, pos=None, cache=None, memory=None, position=None):
        return self.linear(x)

class Broken(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.table = [0.0][d_model]

NUMBER = 3
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to stand in; what is imported from it is forgotten again."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget(tmp_path)


def forget(place: Path) -> None:
    """As if nothing had been imported from there."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(place)):
            del sys.modules[name]


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory of the path, as that of installed packages."""
    place = tmp_path_factory.mktemp("installed")
    monkeypatch.syspath_prepend(str(place))
    yield place
    forget(place)


@pytest.fixture
def package(here: Path) -> Path:
    """my_parts/mine.py in the current directory."""
    (here / "my_parts").mkdir()
    (here / "my_parts/__init__.py").touch()
    (here / "my_parts/mine.py").write_text(MINE)
    (here / "my_parts/slip.py").write_text("def half(:\n")
    (here / "my_parts/raises.py").write_text("import nowhere_at_all\n")
    return here


def test_a_part_of_the_current_directory_has_options_like_any_other(package: Path) -> None:
    searched = list(sys.path)
    choice = NORM.check(Choice("my_parts.mine:Twice", factor="3"))
    assert choice == Choice("my_parts.mine:Twice", factor=3.0)
    assert NORM.build(choice, 4)(torch.ones(4)).tolist() == [3.0] * 4
    assert sys.path == searched
    with pytest.raises(
        UserError, match=r"norm 'my_parts.mine:Twice' has no option 'facto'; did you mean 'factor'\?"
    ):
        NORM.check(Choice("my_parts.mine:Twice", facto=3))


def test_a_model_is_built_with_it_and_its_config_reads_back(package: Path) -> None:
    sizes = {"vocab_size": 9, "d_model": 8, "n_heads": 2, "n_layers": 1}
    config = ModelConfig(**sizes, norm=Choice("my_parts.mine:Twice"))
    assert config.model_dump(mode="json")["norm"] == {"name": "my_parts.mine:Twice", "factor": 2.0}
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    norms = [m for m in build(config, seed=1).modules() if type(m).__name__ == "Twice"]
    assert len(norms) == 2 + 3


def test_a_run_says_what_it_needs_where_that_is_missing(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig(vocab_size=9, d_model=8, n_heads=2, n_layers=1, norm=Choice("my_parts.mine:Twice"))
    (package / "run").mkdir()
    written = {"model_type": "polyhead", **config.model_dump(mode="json")}
    (package / "run/config.json").write_text(json.dumps(written))
    assert read_run_config(package / "run").model == config
    (package / "elsewhere").mkdir()
    monkeypatch.chdir(package / "elsewhere")
    for module in [name for name in sys.modules if name.startswith("my_parts")]:
        del sys.modules[module]
    message = (
        "config.json: norm: norm 'my_parts.mine:Twice': no module 'my_parts' in the installed packages and "
    )
    with pytest.raises(UserError, match=f"{message}.*elsewhere"):
        read_run_config(package / "run")


def test_a_dot_in_place_of_the_colon_is_told(package: Path) -> None:
    with pytest.raises(
        UserError, match=r"unknown norm 'my_parts.mine.Twice'; .*is written my_parts.mine:Twice$"
    ):
        NORM.get("my_parts.mine.Twice")
    with pytest.raises(
        UserError, match=r"^unknown norm 'layernrom'; did you mean 'layernorm'\?[^:]*: [^:]*$"
    ):
        NORM.get("layernrom")


def test_attention_that_does_not_hold_its_position_is_named(package: Path) -> None:
    sizes = {"vocab_size": 9, "d_model": 8, "n_heads": 2, "n_layers": 1, "kind": "decoder"}
    own = Choice("my_parts.mine:Deaf")
    check_model(ModelConfig(**sizes, attention=own, position="none"))
    assert "my_parts.mine:Deaf" in LOADED_PLUGINS
    message = "position 'rope' acts within attention, but attention 'my_parts.mine:Deaf' does not store it"
    with pytest.raises(UserError, match=message):
        check_model(ModelConfig(**sizes, attention=own, position="rope"))


def test_installed_packages_come_first(here: Path, installed: Path) -> None:
    (installed / "twin_parts.py").write_text(MINE)
    (here / "twin_parts.py").write_text("raise RuntimeError('the wrong one')")
    assert NORM.get("twin_parts:Twice").__doc__ == "Doubles."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a:b:c", "norm 'a:b:c': a component of another package is written package.module:Name"),
        (":Twice", "is written package.module:Name"),
        ("my_parts.mine:", "is written package.module:Name"),
        ("my_parts..mine:Twice", "is written package.module:Name"),
        ("my_parts/mine.py:Twice", "is written package.module:Name"),
        (
            "my_part.mine:Twice",
            "norm 'my_part.mine:Twice': no module 'my_part' in the installed packages and /",
        ),
        ("my_parts.mein:Twice", "no module 'my_parts.mein' in the installed packages"),
        ("my_parts.mine.deep:Twice", "no module 'my_parts.mine.deep' in the installed packages"),
        ("my_parts.mine:Twise", "my_parts.mine has no 'Twise'; did you mean 'Twice'?"),
        ("my_parts.slip:half", r"my_parts.slip cannot be imported: SyntaxError: .*slip.py, line 1"),
        (
            "my_parts.raises:x",
            "my_parts.raises cannot be imported: ModuleNotFoundError: No module named 'nowhere_at_all'",
        ),
        ("my_parts.mine:NUMBER", "3 is not a class or function written in Python"),
        (
            "my_parts.mine:Loose",
            r"it takes \(d_model, factor\), but is called with \(d_model\); options come after a \*",
        ),
        ("torch.nn:LayerNorm", r"it takes \(normalized_shape, .*\), but is called with \(d_model\)"),
        ("os:abort", "os is part of Python itself and has no components"),
        ("posix:kill", "posix is part of Python itself"),
        ("__main__:main", "__main__ is part of Python itself"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(package: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        NORM.check(Choice(name))


def test_what_is_called_takes_what_its_kind_is_given(package: Path) -> None:
    with pytest.raises(UserError, match=r"it takes \(d_model\), but is called with \(d_model, d_ff\)"):
        FEED_FORWARD.check(Choice("my_parts.mine:Twice"))


def test_a_part_that_fails_when_it_is_made_is_named(package: Path) -> None:
    message = "norm 'my_parts.mine:Broken' cannot be built: IndexError: list index out of range"
    with pytest.raises(ValueError, match=message):
        check_model(ModelConfig(vocab_size=9, d_model=8, n_heads=2, norm="my_parts.mine:Broken"))


@pytest.mark.parametrize(
    ("stand", "file", "name"),
    [
        ("run", "run/evil.py", "evil:Part"),
        ("run/checkpoints", "run/checkpoints/evil.py", "evil:Part"),
        (".", "run/evil.py", "run.evil:Part"),
        (".", "run/__init__.py", "run:Part"),
        (".", "run/deep/evil.py", "run.deep.evil:Part"),
        (".", "good/run/evil.py", "good.run.evil:Part"),
        (".", "linked/evil.py", "linked.evil:Part"),
        (".", "run/evil.py", "beside:Part"),
    ],
)
@pytest.mark.parametrize("on_path", [False, True], ids=["", "on the path"])
def test_nothing_in_a_run_directory_is_ever_executed(
    here: Path, stand: str, file: str, name: str, on_path: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("run", "run/checkpoints", "run/deep", "good/run"):
        (here / place).mkdir(parents=True)
    (here / "linked").symlink_to(here / "run")
    (here / "beside.py").symlink_to(here / "run/evil.py")
    for run in ("run", "good/run"):
        (here / run / "config.json").write_text('{"model_type": "polyhead", "norm": "evil:Part"}')
    (here / file).write_text(f"open({str(here / 'mark')!r}, 'w')\n{MINE}\nPart = Twice\n")
    monkeypatch.chdir(here / stand)
    if on_path:
        monkeypatch.syspath_prepend(str(here / stand))
    with pytest.raises(
        UserError,
        match=r"no module|is in the run directory .*(run|linked); code in a run directory is never executed",
    ):
        NORM.check(Choice(name))
    assert not (here / "mark").exists()


def test_what_an_installed_package_would_like_to_have_is_not_taken_from_a_run(
    here: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / "asking_parts.py").write_text(
        f"try:\n    import extra_parts\nexcept ImportError:\n    pass\n{MINE}"
    )
    (here / "config.json").write_text('{"model_type": "polyhead"}')
    (here / "extra_parts.py").write_text(f"open({str(here / 'mark')!r}, 'w')")
    assert NORM.get("asking_parts:Twice").__doc__ == "Doubles."
    assert not (here / "mark").exists()


def test_where_python_looks_for_modules_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current directory is the first place of a script in it."""
    (tmp_path / "ordered.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    for first in (True, False):
        places = [*([str(tmp_path)] if first else []), *sys.path]
        monkeypatch.setattr(sys, "path", list(places))
        NORM.get("ordered:Twice")
        assert sys.path == places
        del sys.modules["ordered"]
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
