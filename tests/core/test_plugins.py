import json
import sys

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.core.errors import UserError
from polyhead.core.plugins import LOADED_PLUGINS
from polyhead.core.registry import FEED_FORWARD, NORM
from polyhead.nn.validate_model import check_model
from polyhead.run.run_directory import read_run_config

SIZES = {"vocab_size": 9, "d_model": 8, "n_heads": 2, "n_layers": 1}
TWICE = "my_parts.mine:Twice"
SOURCE = '''
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

class NoPosition(nn.Module):
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


def unload(directory):
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(directory)):
            del sys.modules[name]


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    unload(tmp_path)


@pytest.fixture
def site_dir(tmp_path_factory, monkeypatch):
    directory = tmp_path_factory.mktemp("site")
    monkeypatch.syspath_prepend(str(directory))
    yield directory
    unload(directory)


@pytest.fixture
def package(workdir):
    (workdir / "my_parts").mkdir()
    (workdir / "my_parts/__init__.py").touch()
    (workdir / "my_parts/mine.py").write_text(SOURCE)
    (workdir / "my_parts/slip.py").write_text("def half(:\n")
    (workdir / "my_parts/raises.py").write_text("import nowhere_at_all\n")
    return workdir


def test_plugins_fit_configs_models_and_kinds(package):
    path = list(sys.path)
    choice = NORM.check(Choice(TWICE, factor="3"))
    assert choice == Choice(TWICE, factor=3.0)
    assert NORM.build(choice, 4)(torch.ones(4)).tolist() == [3.0] * 4 and sys.path == path
    message = rf"norm '{TWICE}' has no option 'facto'; did you mean 'factor'\?"
    with pytest.raises(UserError, match=message):
        NORM.check(Choice(TWICE, facto=3))
    config = ModelConfig(**SIZES, norm=Choice(TWICE))
    assert config.model_dump(mode="json")["norm"] == {"name": TWICE, "factor": 2.0}
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    norms = [m for m in build(config, seed=1).modules() if type(m).__name__ == "Twice"]
    assert len(norms) == 2 + 3
    attention = Choice("my_parts.mine:NoPosition")
    sizes = SIZES | {"kind": "decoder", "attention": attention}
    check_model(ModelConfig(**sizes, position="none"))
    assert attention.name in LOADED_PLUGINS
    message = f"position 'rope' acts within attention, but attention '{attention.name}' does not store it"
    with pytest.raises(UserError, match=message):
        check_model(ModelConfig(**sizes, position="rope"))
    with pytest.raises(UserError, match=r"it takes \(d_model\), but is called with \(d_model, d_ff\)"):
        FEED_FORWARD.check(Choice(TWICE))
    message = "norm 'my_parts.mine:Broken' cannot be built: IndexError: list index out of range"
    with pytest.raises(ValueError, match=message):
        check_model(ModelConfig(**SIZES, norm="my_parts.mine:Broken"))


def test_run_names_the_missing_package(package, monkeypatch):
    config = ModelConfig(**SIZES, norm=Choice(TWICE))
    for name in ("run", "elsewhere"):
        (package / name).mkdir()
    fields = {"model_type": "polyhead", **config.model_dump(mode="json")}
    (package / "run/config.json").write_text(json.dumps(fields))
    assert read_run_config(package / "run").model == config
    monkeypatch.chdir(package / "elsewhere")
    unload(package)
    message = f"config.json: norm: norm '{TWICE}': no module 'my_parts' in the installed packages and "
    with pytest.raises(UserError, match=f"{message}.*elsewhere"):
        read_run_config(package / "run")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a:b:c", "norm 'a:b:c': a component of another package is written package"),
        ("my_parts.mine:", "is written package.module:Name"),
        ("my_parts/mine.py:Twice", "is written package.module:Name"),
        ("my_part.mine:Twice", "norm 'my_part.mine:Twice': no module 'my_part' in the installed packages"),
        ("my_parts.mein:Twice", "no module 'my_parts.mein' in the installed packages"),
        ("my_parts.mine:Twise", "my_parts.mine has no 'Twise'; did you mean 'Twice'?"),
        ("my_parts.slip:half", r"my_parts.slip cannot be imported: SyntaxError: .*slip.py, line 1"),
        ("my_parts.raises:x", "my_parts.raises cannot be imported: ModuleNotFoundError: .*'nowhere_at_all'"),
        ("my_parts.mine:NUMBER", "3 is not a class or function written in Python"),
        ("my_parts.mine:Loose", r"it takes \(d_model, factor\), but is called with \(d_model\); options"),
        ("torch.nn:LayerNorm", r"it takes \(normalized_shape, .*\), but is called with \(d_model\)"),
        ("os:abort", "os is part of Python itself and has no components"),
        ("__main__:main", "__main__ is part of Python itself"),
        ("my_parts.mine.Twice", rf"unknown norm 'my_parts.mine.Twice'; .*is written {TWICE}$"),
        ("layernrom", r"^unknown norm 'layernrom'; did you mean 'layernorm'\?[^:]*: [^:]*$"),
    ],
)
def test_invalid_name_is_refused(package, name, message):
    with pytest.raises(UserError, match=message):
        NORM.check(Choice(name))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("cwd", "file", "name"),
    [
        ("run", "run/evil.py", "evil:Part"),
        ("run/checkpoints", "run/checkpoints/evil.py", "evil:Part"),
        (".", "run/evil.py", "run.evil:Part"),
        (".", "run/__init__.py", "run:Part"),
        (".", "run/deep/evil.py", "run.deep.evil:Part"),
        (".", "good/run/evil.py", "good.run.evil:Part"),
        (".", "linked/evil.py", "linked.evil:Part"),
        (".", "run/evil.py", "link:Part"),
    ],
)
@pytest.mark.parametrize("is_on_path", [False, True], ids=["", "on the path"])
def test_code_in_a_run_directory_is_never_executed(workdir, cwd, file, name, is_on_path, monkeypatch):
    for directory in ("run", "run/checkpoints", "run/deep", "good/run"):
        (workdir / directory).mkdir(parents=True)
    (workdir / "linked").symlink_to(workdir / "run")
    (workdir / "link.py").symlink_to(workdir / "run/evil.py")
    for run in ("run", "good/run"):
        (workdir / run / "config.json").write_text('{"model_type": "polyhead", "norm": "evil:Part"}')
    (workdir / file).write_text(f"open({str(workdir / 'mark')!r}, 'w')\n{SOURCE}\nPart = Twice\n")
    monkeypatch.chdir(workdir / cwd)
    if is_on_path:
        monkeypatch.syspath_prepend(str(workdir / cwd))
    refusal = r"is in the run directory .*(run|linked); code in a run directory is never executed"
    with pytest.raises(UserError, match=f"no module|{refusal}"):
        NORM.check(Choice(name))
    assert not (workdir / "mark").exists()


def test_installed_packages_come_before_the_working_directory(workdir, site_dir):
    """Neither a module of the same name nor an optional import is taken from the working directory."""
    optional = "try:\n    import extra_parts\nexcept ImportError:\n    pass\n"
    (site_dir / "twin_parts.py").write_text(optional + SOURCE)
    (workdir / "config.json").write_text('{"model_type": "polyhead"}')
    for name in ("twin_parts", "extra_parts"):
        (workdir / f"{name}.py").write_text(f"open({str(workdir / 'mark')!r}, 'w')")
    assert NORM.get("twin_parts:Twice").__doc__ == "Doubles."
    assert not (workdir / "mark").exists()


@pytest.mark.parametrize("is_script", [True, False])
def test_search_path_is_unchanged(workdir, monkeypatch, is_script):
    """The working directory is the first entry of a script in it."""
    (workdir / "ordered.py").write_text(SOURCE)
    path = [*([str(workdir)] if is_script else []), *sys.path]
    monkeypatch.setattr(sys, "path", list(path))
    NORM.get("ordered:Twice")
    assert sys.path == path
