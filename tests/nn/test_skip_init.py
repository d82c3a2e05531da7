import torch
from tests.run.run_helpers import run_dir as run_dir

import polyhead as ph


def test_loading_draws_no_random_numbers(run_dir):
    rng_state = torch.get_rng_state()
    ph.load(run_dir)
    assert torch.equal(torch.get_rng_state(), rng_state)
