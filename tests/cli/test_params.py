from polyhead.config.presets import PRESET_INFO, PRESETS


def test_tables_of_one_preset_and_of_all(cli):
    line = "layer                     85,054,464        12 x 7,087,872  12H² + 13H"
    assert line in cli("params", "bert-base").out
    assert "bert-large         335,141,888       340M" in cli("params").out
    assert set(PRESET_INFO) == set(PRESETS) - {"tiny"}
