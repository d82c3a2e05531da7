import torch

from polyhead.generation.engine.interface import pad_rows


def test_pad_rows_marks_padding_in_positions():
    tokens, pos = pad_rows([[5, 6, 7], [8]], 1, torch.device("cpu"))
    assert tokens.tolist() == [[5, 6, 7], [8, 1, 1]] and pos.tolist() == [[0, 1, 2], [0, -1, -1]]
    assert pad_rows([[5], [8]], 1, torch.device("cpu"))[1] is None
