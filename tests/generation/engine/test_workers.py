"""Several engines in threads against one."""

import pytest
import torch
from tests.kernels.fused_step_helpers import made

from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState, beam_search
from polyhead.generation.engine import workers as parts
from polyhead.generation.engine.engine import Engine
from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.pack_model import linear_factory, pack_model

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="no compiler for the kernels")


@pytest.fixture
def two_threads():
    n_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("name", ["base", "gpt2"])
def test_workers_equal_one_engine_bitwise(name, beam_size, two_threads, monkeypatch):
    model = pack_model(made(name), linear_factory("int8"))
    source = torch.randint(5, 97, (33, 7), generator=torch.Generator().manual_seed(1))
    options = {
        "bos_id": 1,
        "eos_id": 2,
        "beam_size": beam_size,
        "max_new_tokens": [5 + i % 9 for i in range(33)],
    }
    options["early_stopping"] = beam_size == 1
    assert parts.count_workers(model, 33) == 2
    actual = beam_search(model, source, None, **options)
    assert torch.get_num_threads() == 2
    monkeypatch.setattr(parts, "MAX_WORKERS", 1)
    assert beam_search(model, source, None, **options) == actual


def test_model_without_kernels_has_one_worker(two_threads):
    assert parts.count_workers(made("gpt2"), 100) == 1
    assert parts.count_workers(pack_model(made("gpt2")), 2 * parts.MIN_WORKER_ROWS - 1) == 1


def submit_all(workers, n):
    strategy = BeamSearchStrategy(1, 2, early_stopping=True, min_new_tokens=9)
    for i in range(n):
        workers.add(i, lambda engine: engine.submit([5], BeamState(strategy, BeamRequest(9))))


def test_closing_results_ends_the_threads(two_threads):
    model = pack_model(made("gpt2"))
    workers = parts.Workers(lambda: Engine(model, max_len=40, max_num_seqs=1), 2)
    submit_all(workers, 40)
    results = workers.run()
    next(results)
    results.close()
    assert sum(request.finish_status is not None for _, request in workers.requests[0]) < 20


def test_an_error_of_a_thread_is_raised(two_threads, monkeypatch):
    workers = parts.Workers(lambda: Engine(pack_model(made("gpt2")), max_len=40), 2)
    submit_all(workers, 4)
    monkeypatch.setattr(workers.engines[1], "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(workers.run())
