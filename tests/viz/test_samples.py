import json

from polyhead.introspect.attention_map import AttentionMap
from polyhead.viz.samples import Breakdown, Confusion, Group, Samples, group_by_length, spread_by_length


def test_texts_are_grouped_and_spread_by_length():
    lengths = [1, 1, 1, 1, 1, 2, 3, 4, 9, 9, 20]
    groups = group_by_length(lengths)
    assert sorted(i for indices in groups.values() for i in indices) == list(range(len(lengths)))
    expected = {"1": [1] * 5, "2": [2], "3–9": [3, 4, 9, 9], "20": [20]}
    assert {name: [lengths[i] for i in indices] for name, indices in groups.items()} == expected
    assert group_by_length([]) == {} and group_by_length([7]) == {"7": [0]}
    # examples are spread
    texts = ["x" * n for n in (5, 1, 4, 2, 3, 6)]
    assert [len(texts[i]) for i in spread_by_length(texts, 3)] == [2, 4, 6]
    assert [len(texts[i]) for i in spread_by_length(texts, 99)] == [1, 2, 3, 4, 5, 6]


def test_samples_json_roundtrip():
    samples = Samples(
        description="x",
        columns=("a", "b", "c"),
        differences="whole",
        examples=[{"source": "s", "output": "o", "reference": "r"}],
        breakdowns=[Breakdown("chrF", "class", [Group("1–2", 3, 4.5)])],
        confusion=Confusion(["n", "p"], [[1, 0], [2, 3]]),
        attention=[AttentionMap(["a"], ["b"], [[[[1.0]]]], "cross-attention", "a", [1], ["x → b"])],
    )
    assert Samples.from_json(json.loads(json.dumps(samples.to_json()))) == samples
    assert Samples.from_json({}) == Samples()
