import pytest
import torch
from tests.generation.helpers import build_noisy
from tests.kernels.build_extension_helpers import needs_kernels

from polyhead.config.model import ModelConfig
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState, beam_search
from polyhead.generation.engine import workers as module
from polyhead.generation.engine.engine import Engine
from polyhead.kernels.pack_model import linear_factory, pack_model

pytestmark = needs_kernels
GPT2 = {"position": "learned", "norm_first": True, "feed_forward": {"name": "gelu", "tanh": True}}


def make_model(kind="decoder"):
    sizes = {"d_model": 128, "n_heads": 4, "n_layers": 2, "vocab_size": 97, "max_len": 48, "d_ff": 200}
    return build_noisy(ModelConfig(kind=kind, **sizes, **GPT2 if kind == "decoder" else {}), 1, 0.05, 2)


@pytest.fixture
def two_threads():
    n_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.parametrize(("kind", "beam_size"), [("encoder-decoder", 1), ("decoder", 3)])
def test_workers_equal_one_engine_bitwise(kind, beam_size, two_threads, monkeypatch):
    model = pack_model(make_model(kind), linear_factory("int8"))
    source = torch.randint(5, 97, (33, 7), generator=torch.Generator().manual_seed(1))
    options = {"bos_id": 1, "eos_id": 2, "beam_size": beam_size, "early_stopping": beam_size == 1}
    options["max_new_tokens"] = [5 + i % 9 for i in range(33)]
    assert module.count_workers(model, 33) == 2
    actual = beam_search(model, source, None, **options)
    assert torch.get_num_threads() == 2
    monkeypatch.setattr(module, "MAX_WORKERS", 1)
    assert beam_search(model, source, None, **options) == actual
    assert module.count_workers(make_model(), 100) == 1  # without kernels
    assert module.count_workers(pack_model(make_model()), 2 * module.MIN_WORKER_ROWS - 1) == 1


def test_closing_results_or_an_error_ends_threads(two_threads, monkeypatch):
    workers = start_workers(1000, max_num_seqs=1)
    results = workers.run()
    next(results)
    results.close()
    assert sum(request.finish_status is not None for _, request in workers.requests[0]) < 500
    workers = start_workers(4)
    monkeypatch.setattr(workers.engines[1], "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(workers.run())


def start_workers(n, **options):
    model = pack_model(make_model())
    strategy = BeamSearchStrategy(1, 2, early_stopping=True, min_new_tokens=9)
    workers = module.Workers(lambda: Engine(model, max_len=40, **options), 2)
    for i in range(n):
        workers.add(i, lambda engine: engine.submit([5], BeamState(strategy, BeamRequest(9))))
    return workers
