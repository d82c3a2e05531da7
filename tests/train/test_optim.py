import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polyhead import Choice, ModelConfig, build
from polyhead.core.registry import OPTIMIZER, POSITION
from polyhead.train.optim import set_rates


def tiny_model():
    return build(ModelConfig(vocab_size=11, d_model=8, n_heads=2, n_layers=1, d_ff=16, max_len=8), seed=1)


def test_adamw_is_the_published_update():
    model = tiny_model()
    choice = Choice("adamw", beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.1)
    (optimizer,) = OPTIMIZER.build(choice, model, 0.01)
    assert optimizer.defaults["fused"]
    state = {name: (p.detach().double(), 0.0, 0.0) for name, p in model.named_parameters()}
    generator = torch.Generator()
    for step in range(1, 5):
        generator.manual_seed(step)
        set_rates([optimizer], 0.5)
        for name, p in model.named_parameters():
            p.grad = torch.randn(p.shape, generator=generator)
            w, m, v = state[name]
            g, lr = p.grad.double(), 0.01 * 0.5
            m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
            w = w * (1 - lr * (0.1 if p.ndim >= 2 else 0.0))  # only matrices decay
            w = w - lr * (m / (1 - 0.8**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-6)
            state[name] = (w, m, v)
        optimizer.step()
    for name, p in model.named_parameters():
        assert torch.allclose(p.detach().double(), state[name][0], rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
def test_each_optimizer_owns_parameters_and_lowers_loss(name):
    config = ModelConfig(kind="decoder", vocab_size=11, d_model=16, n_heads=2, n_layers=1, dropout=0.0)
    model, losses = build(config, seed=1), []
    optimizers = OPTIMIZER.build(Choice(name), model, 0.04)
    ids = [id(p) for o in optimizers for group in o.param_groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in model.parameters())
    for factor in (1.0, 0.25, 0.5):  # of the peak, not of the rate before
        set_rates(optimizers, factor)
    assert all(group["lr"] == pytest.approx(0.02) for o in optimizers for group in o.param_groups)
    tokens = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(2))
    for _ in range(60):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
BLOCK = {f"attn.{name}" for name in ATTENTION} | {"ffn.up_proj", "ffn.down_proj"}
DECODER = BLOCK | {f"cross.{name}" for name in ATTENTION}
KINDS = [
    ({"kind": "decoder"}, {"stack": BLOCK}),
    ({"kind": "decoder", "tie_embeddings": "none"}, {"stack": BLOCK}),
    ({"kind": "decoder", "block": {"name": "parallel"}, "norm_first": True}, {"stack": BLOCK}),
    ({"kind": "encoder", "n_segments": 2}, {"encoder.stack": BLOCK}),
    ({"kind": "encoder", "labels": ["a", "b"]}, {"encoder.stack": BLOCK}),
    ({"kind": "encoder", "lm_head": False, "pooling": "first"}, {"encoder.stack": BLOCK}),
    ({"kind": "encoder-decoder"}, {"encoder": BLOCK, "decoder": DECODER}),
    ({"kind": "encoder-decoder", "tie_embeddings": "none"}, {"encoder": BLOCK, "decoder": DECODER}),
]
PATTERN = {"position": "rope", "layer_pattern": [{"position": {"name": name}} for name in ("t5", "shaw")]}


@pytest.mark.parametrize("position", [*POSITION.names(), "pattern"])
@pytest.mark.parametrize(("kind", "stacks"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_muon_takes_only_matrices_inside_blocks(kind, stacks, position):
    positions = PATTERN if position == "pattern" else {"position": position}
    sizes = {"vocab_size": 11, "d_model": 8, "n_heads": 2, "n_layers": 2, "max_len": 8}
    model = build(ModelConfig(**sizes, **kind, **positions), 1)
    optimizers = OPTIMIZER.build(Choice("muon", adam_lr=0.5), model, 0.02)
    groups = [optimizer.param_groups for optimizer in optimizers]
    assert [{group["lr"] for group in part} for part in groups] == [{0.02}, {0.5}]
    matrices, other_ids = ({id(p) for group in part for p in group["params"]} for part in groups)
    names = {name for name, p in model.named_parameters() if id(p) in matrices}
    layers = [(f"{stack}.layers.{i}", parts) for stack, parts in stacks.items() for i in (0, 1)]
    assert names == {f"{layer}.{part}.weight" for layer, parts in layers for part in parts}
    assert other_ids == {id(p) for p in model.parameters()} - matrices
    (optimizer,) = OPTIMIZER.build(Choice("muon"), nn.Linear(3, 2), 0.02)
    assert isinstance(optimizer, torch.optim.AdamW)  # without blocks
