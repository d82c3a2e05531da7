from polyhead_lab import norms
from polyhead_lab.registry import LabContext


def test_padding_affects_batchnorm_only_without_positions():
    context = LabContext(1, True)
    assert norms.measure_padding_effect(context, with_positions=True) < 1e-5
    assert norms.measure_padding_effect(context, with_positions=False) > 0.1
