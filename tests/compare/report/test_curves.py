from tests.compare.result_rows import make_row

from polyhead.compare.report.charts import average_curves, flops_per_step, trim_start
from polyhead.viz.plot import Curve


def test_curve_is_mean_of_seeds():
    curves = [[[10, 60.0, 3.0], [20, 120.0, 2.0]], [[10, 120.0, 5.0], [20, 240.0, None]]]
    row = make_row("x", 1.0, curves=curves)
    assert average_curves(row, "steps") == [(10, 4.0), (20, 2.0)]
    assert average_curves(row, "time") == [(1.5, 4.0), (2.0, 2.0)]
    assert flops_per_step(row) == 3 * 7e6 * 1000
    assert flops_per_step({**row, "times_forward": 2}) == 2 * 7e6 * 1000


def test_initial_drop_is_trimmed_from_curves():
    curves = [Curve("a", [(1, 9.0), (2, 3.0), (3, 2.0)]), Curve("b", [(1, 9.0), (2, 8.0), (3, 4.0)])]
    assert [c.points for c in trim_start(curves)] == [[(2, 3.0), (3, 2.0)], [(3, 4.0)]]
