from polyhead_lab.statistics import median_times, time_interleaved, time_ratios


def test_runners_alternate_and_ratios_are_per_round():
    order = []
    times = time_interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert order == [*"ab", *"aaaabbbb", *"bbbbaaaa"]
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}
    assert time_ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert median_times({"a": [5.0, 1.0, 2.0]}) == {"a": 2.0}
