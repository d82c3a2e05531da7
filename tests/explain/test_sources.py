from pathlib import Path

import polyhead
from polyhead.explain.levers.table import LEVERS
from polyhead.explain.part_notes import list_sources
from polyhead.explain.trace import locate_function


def read_function_name(source):
    path = Path(polyhead.__file__).parent / source["file"]
    line = path.read_text(encoding="utf-8").splitlines()[source["line"] - 1]
    assert line.strip().startswith("def ")
    return line.strip().removeprefix("def ").split("(")[0]


def test_sources_name_their_functions():
    names = {name: read_function_name(source) for name, source in list_sources().items()}
    expected = {"kl": "compute_kl", "vector": "forward", "beams": "advance", "pass": "count_forward"}
    assert expected.items() <= names.items() and len(names) == 20
    names = {name: read_function_name(locate_function(lever.compute)) for name, lever in LEVERS.items()}
    assert (names["head"], names["positions"]) == ("_compute_head", "remove_positions")
    assert locate_function(None) is None
