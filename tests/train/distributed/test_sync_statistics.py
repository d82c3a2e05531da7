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
WITH_RECOMPUTATION = {
    "model": BATCH_NORM,
    "recompute": "blocks",
    **FEW_ROWS,
}  # tests/nn/test_recompute.py has a fast one


@pytest.mark.parametrize(
    ("world_size", "cases"),
    [
        (
            2,
            [
                ("translation", {"model": BATCH_NORM}),
                ("masked-lm", {"model": BATCH_NORM}),
                ("classification", {"model": BATCH_NORM}),
                ("translation", {"model": BATCH_NORM, "freeze": ["encoder"]}),  # its statistics still change
                ("language-model", {"model": EXPERTS}),
            ],
        ),
        (
            3,
            [
                (task, {"model": model, **FEW_ROWS})
                for task, model in (("translation", BATCH_NORM), ("translation", EXPERTS))
            ],
        ),
        pytest.param(
            3,
            [("translation", WITH_RECOMPUTATION), ("masked-lm", {"model": BATCH_NORM})],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["two", "three", "three-slow"],
)
def test_statistics_match_one_process(world_size, cases, corpus_dir):
    single, parallel = (
        train_all(
            [
                recipe_of(corpus_dir, task, f"statistics-{world_size}-{len(cases)}-{i}-{n}", **options)
                for i, (task, options) in enumerate(cases)
            ],
            n,
        )
        for n in (1, world_size)
    )
    for (_, options), a, b in zip(cases, single, parallel, strict=True):
        suffix = ".running_mean" if "norm" in options["model"] else ".balance"
        statistics = [w for name, w in a["final"].items() if name.endswith(suffix)]
        assert statistics and all(w.abs().max() > 0 for w in statistics)
        assert_same_run(a, b)
        if suffix == ".balance":
            expected, actual = ([row["loss"] for row in run["metrics"]] for run in (a, b))
            assert actual == pytest.approx(expected, rel=0, abs=1e-6)
