from collections import defaultdict

import pytest
from tests.laws.conftest import CASES, find_parts
from tests.sampling import CASE_PARTS, function_of, sample_cases

from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD, INIT, NORM, POSITION

REGISTERED_PARTS = {
    f"{registry.kind} {name}"
    for registry in (ATTENTION, BLOCK, FEED_FORWARD, INIT, NORM, POSITION)
    for name in registry.names()
    if (registry, name) != (BLOCK, "transformer")  # the block of every case that names none
}


@pytest.mark.parametrize(
    "law", ["test_padding_is_inert", "test_rows_do_not_interact", "test_a_law_of_tomorrow"]
)
def test_sample_of_a_law_has_every_registered_part(law):
    cases = {f"tests/laws/test_models.py::{law}[{case}]": find_parts({"case": case}) for case in CASES}
    sample = sample_cases(cases)
    assert set().union(*(cases[id] for id in sample)) >= REGISTERED_PARTS
    assert len(sample) < len(cases) // 4


def test_laws_of_this_run_have_every_registered_part(request):
    laws = defaultdict(set)
    for item in request.session.items:
        if item.nodeid.startswith("tests/laws/test_models.py") and "case" in item.callspec.params:
            laws[function_of(item)] |= item.stash[CASE_PARTS]
    is_narrowed = request.config.getoption("keyword") or request.config.getoption("--shard")
    assert is_narrowed or all(parts >= REGISTERED_PARTS for parts in laws.values())
