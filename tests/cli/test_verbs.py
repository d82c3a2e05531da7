from importlib import import_module

import pytest

from polyhead.cli.verbs import VERBS


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"], ["help"]])
def test_help_lists_every_verb(words, cli):
    out = cli(*words).out
    assert all(f"\n  {verb} " in out for verb in VERBS)
    for verb, (module, _) in VERBS.items() if words == [] else ():
        out = cli(verb, "--help").out
        assert out.startswith(f"Usage: polyhead {verb} ")
        docstring = import_module(f"polyhead.cli.{module}").run.__doc__
        assert docstring.splitlines()[0] in " ".join(out.split())
