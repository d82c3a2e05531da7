from polyhead.lab import norms
from polyhead.lab.registry import LabContext

QUICK = LabContext(1, True)


def test_padding_changes_batchnorm_only_if_it_is_counted():
    assert norms.measure_padding_effect(QUICK, with_positions=True) < 1e-5
    assert norms.measure_padding_effect(QUICK, with_positions=False) > 0.1
