from collections import defaultdict

from tests.sampling import CASE_PARTS, function_of

from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD, INIT, NORM, POSITION

REGISTERED_PARTS = {
    f"{registry.kind} {name}"
    for registry in (ATTENTION, BLOCK, FEED_FORWARD, INIT, NORM, POSITION)
    for name in registry.names()
    if (registry, name) != (BLOCK, "transformer")  # the block of every case that names none
}


def test_laws_of_this_run_have_every_registered_part(request):
    laws = defaultdict(set)
    for item in request.session.items:
        if item.nodeid.startswith("tests/laws/test_models.py") and "case" in item.callspec.params:
            laws[function_of(item)] |= item.stash[CASE_PARTS]
    is_narrowed = request.config.getoption("keyword") or request.config.getoption("--shard")
    assert is_narrowed or all(parts >= REGISTERED_PARTS for parts in laws.values())
