import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hf.conftest import make
from tests.hf.families import causal_cases
from tests.hf.load_helpers import load_mmap
from tests.run.run_helpers import run_dir as run_dir

import polyhead as ph
from polyhead.core.registry import NORM, POSITION
from polyhead.kernels.pack_model import unused_weights
from polyhead.models.build import model_class
from polyhead.nn.init import SkipInit
from polyhead.nn.state import assign_state, named_state

REGISTRIES = {"norm": NORM, "position": POSITION}
CASES = [{kind: {"name": name}} for kind, registry in REGISTRIES.items() for name in registry.names()]
CASES.append({"norm": {"name": "rmsnorm", "weight": False}})


@pytest.mark.parametrize("changes", CASES, ids=str)
@pytest.mark.parametrize("tied", ["all", "none"])
def test_meta_model_with_state_equals_built_model(changes, tied):
    sizes = {"vocab_size": 40, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 24}
    config = ph.ModelConfig(**sizes, tie_embeddings=tied, **changes)
    expected = ph.build(config, seed=1).eval()
    with torch.device("meta"), SkipInit():
        model = model_class(config)(config)
    state = {name: tensor.detach() for name, tensor in named_state(expected).items()}
    assert assign_state(model, state).eval() is model
    buffers = dict(model.named_buffers())
    torch.testing.assert_close(buffers, dict(expected.named_buffers()), rtol=0, atol=0)
    for name, tensor in named_state(model).items():
        assert tensor.data_ptr() == state.pop(name).data_ptr(), "copied"
    assert not state
    source, target = torch.randint(5, 40, (2, 7)), torch.randint(5, 40, (2, 6))
    with torch.no_grad():
        assert torch.equal(model(source, target), expected(source, target))
    assert [x.requires_grad for x in model.parameters()] == [x.requires_grad for x in expected.parameters()]


def test_mapped_model_materializes_only_unpacked_weights(tmp_path, run_dir):
    case = causal_cases.CASES["llama"][0]
    make(tmp_path, case.config, **case.sizes)
    path = tmp_path / "model.safetensors"
    save_file({name: x.bfloat16() for name, x in load_file(path).items()}, path, {"format": "pt"})
    rng_state = torch.get_rng_state()
    model = load_mmap(tmp_path)
    ph.load(run_dir)
    assert torch.equal(torch.get_rng_state(), rng_state), "weights were initialized"
    assert {x.dtype for x in named_state(model).values()} == {torch.bfloat16}
    unused = unused_weights(model)
    names = {name for name, x in named_state(model).items() if id(x) in unused}
    assert names == {name for name in named_state(model) if name.endswith("_proj.weight")}
    assert ph.nn.state.materialize(model, exclude=unused) is model
    assert {name for name, x in named_state(model).items() if x.dtype == torch.bfloat16} == names
