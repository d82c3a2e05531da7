import pytest
from tests.train.distributed.rank_runs import assert_same_run, recipe_of, train_all

pytestmark = [
    pytest.mark.usefixtures("no_report"),
    pytest.mark.acceptance("G5", "A6"),
    pytest.mark.acceptance("G2"),
]
BATCH_NORM = {"norm": "batchnorm"}
EXPERTS = {"feed_forward": {"name": "moe", "n_experts": 4, "top_k": 2}}
# two rows at most, so the third rank has none, and the second sometimes has none
FEW_ROWS = {"max_tokens": 26, "accumulate": 2}
SLOW = [  # tests/nn/test_recompute.py has a fast one
    ("translation", {"model": BATCH_NORM, "recompute": "blocks", **FEW_ROWS}),
    ("masked-lm", {"model": BATCH_NORM}),
]
OF_TWO = [(task, {"model": BATCH_NORM}) for task in ("translation", "masked-lm", "classification")]
OF_TWO.append(("translation", {"model": BATCH_NORM, "freeze": ["encoder"]}))  # its statistics still change
OF_TWO.append(("language-model", {"model": EXPERTS}))
OF_THREE = [("translation", {"model": model, **FEW_ROWS}) for model in (BATCH_NORM, EXPERTS)]


@pytest.mark.parametrize(
    ("world_size", "cases"),
    [(2, OF_TWO), (3, OF_THREE), pytest.param(3, SLOW, marks=pytest.mark.slow)],
    ids=["two", "three", "three-slow"],
)
def test_statistics_match_one_process(request, world_size, cases, corpus_dir):
    def train_cases(n):
        names = [f"{request.node.callspec.id}-{i}-{n}" for i in range(len(cases))]
        recipes = [recipe_of(corpus_dir, c[0], name, **c[1]) for c, name in zip(cases, names, strict=True)]
        return train_all(recipes, n)

    for (_, options), a, b in zip(cases, train_cases(1), train_cases(world_size), strict=True):
        suffix = ".running_mean" if "norm" in options["model"] else ".balance"
        statistics = [w for name, w in a["final"].items() if name.endswith(suffix)]
        assert statistics and all(w.abs().max() > 0 for w in statistics)
        assert_same_run(a, b)
        if suffix == ".balance":
            expected, actual = ([row["loss"] for row in run["metrics"]] for run in (a, b))
            assert actual == pytest.approx(expected, rel=0, abs=1e-6)
