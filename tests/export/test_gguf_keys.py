import numpy as np
import torch
from tests.export.gguf_helpers import PARTS, language_model, read_tensors

from polyhead.export.gguf import write_gguf


def test_llama3_scaling_of_each_pair(tmp_path):
    """Pairs of four turns or more in the original length stay, those of one or fewer turn 8 times slower."""
    write_gguf(language_model(**PARTS["llama3"][1]), tmp_path)
    turns = [16 * 100.0 ** (-2 * j / 8) / (2 * np.pi) for j in range(4)]
    shares = [min(1.0, max(0.0, (t - 1) / 3)) for t in turns]
    expected = torch.tensor([1 / (share + (1 - share) / 8) for share in shares])
    torch.testing.assert_close(read_tensors(tmp_path)["rope_freqs.weight"], expected)
    assert 1 < expected[0] < expected[-1] == 8
