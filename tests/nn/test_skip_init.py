import torch
from tests.run.run_helpers import saved as saved

import polyhead as ph


def test_loading_draws_no_random_numbers(saved):
    rng_state = torch.get_rng_state()
    ph.load(saved)
    assert torch.equal(torch.get_rng_state(), rng_state)
