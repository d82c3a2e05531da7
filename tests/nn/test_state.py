"""A model built on the meta device with an assigned state equals one built on the CPU."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hf.conftest import make
from tests.hf.families import causal_cases

import polyhead as ph
from polyhead.core.registry import NORM, POSITION
from polyhead.hf.load import load_mmap
from polyhead.kernels.pack_model import unused_weights
from polyhead.models.build import model_class
from polyhead.nn.skip_init import SkipInit
from polyhead.nn.state import assign_state, named_state


def parts(registry, kind):
    for name in registry.names():
        yield pytest.param({kind: {"name": name}}, id=name)


CASES = [*parts(NORM, "norm"), *parts(POSITION, "position"), {"norm": {"name": "rmsnorm", "weight": False}}]


@pytest.mark.parametrize("changes", CASES)
@pytest.mark.parametrize("tied", ["all", "none"])
def test_meta_model_with_state_equals_built_model(changes, tied):
    config = ph.ModelConfig(
        vocab_size=40, d_model=16, n_heads=2, n_layers=2, max_len=24, tie_embeddings=tied, **changes
    )
    expected = ph.build(config, seed=1).eval()
    with torch.device("meta"), SkipInit():
        model = model_class(config)(config)
    state = {name: tensor.detach() for name, tensor in named_state(expected).items()}
    assert assign_state(model, state).eval() is model
    buffers = dict(expected.named_buffers())
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers.pop(name))
    assert not buffers
    for name, tensor in named_state(model).items():
        assert tensor.data_ptr() == state.pop(name).data_ptr(), "copied"
    assert not state
    source, target = torch.randint(5, 40, (2, 7)), torch.randint(5, 40, (2, 6))
    with torch.no_grad():
        assert torch.equal(model(source, target), expected(source, target))
    assert [x.requires_grad for x in model.parameters()] == [x.requires_grad for x in expected.parameters()]


def cast_weights(directory, dtype):
    path = directory / "model.safetensors"
    save_file({name: x.to(dtype) for name, x in load_file(path).items()}, path, {"format": "pt"})


def test_mapped_model_materializes_only_unpacked_weights(tmp_path):
    case = causal_cases.CASES["llama"][0]
    make(tmp_path, case.config, **case.sizes)
    cast_weights(tmp_path, torch.bfloat16)
    rng_state = torch.get_rng_state()
    model = load_mmap(tmp_path)
    assert torch.equal(torch.get_rng_state(), rng_state), "weights were initialized"
    assert {x.dtype for x in named_state(model).values()} == {torch.bfloat16}
    unused = unused_weights(model)
    names = {name for name, x in named_state(model).items() if id(x) in unused}
    assert names == {name for name in named_state(model) if name.endswith("_proj.weight")}
    assert ph.nn.state.materialize(model, exclude=unused) is model
    assert {name for name, x in named_state(model).items() if x.dtype == torch.bfloat16} == names
