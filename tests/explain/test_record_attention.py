import numpy as np
import pytest
import torch
from tests.explain.explain_helpers import (
    TARGET,
    TEXT,
    explain_config,
    explain_walk,
    list_steps,
    make_inputs,
    make_run,
    read_document,
    t5_bucket,
)

from polyhead.explain.record_attention import explain_mask
from polyhead.introspect.compute_attention import record_attention
from polyhead.nn.kv import KV, Window, attention_mask


@pytest.mark.parametrize(
    ("pos", "causal", "window", "expected"),
    [
        ([0, 1, 2], True, None, [".FF", "..F", "..."]),
        ([0, 1, -1], False, None, ["..P", "..P"]),
        ([0, 1, 0, 1], True, None, [".FDD", "..DD", "DD.F", "DD.."]),
        ([0, 1, 2, 3], True, Window(2), [".FFF", "..FF", "W..F", "WW.."]),
        ([0, 1, 2, 3], False, Window(2, 1), ["..WW", "...W", "....", ".W.."]),
    ],
)
def test_explain_mask_gives_first_reason(pos, causal, window, expected):
    """For each query (row) and key: . visible, P padding, F future, W window, D document."""
    pos = torch.tensor([pos])
    n = pos.size(1)
    kv = KV(torch.zeros(1, 1, n, 2), torch.zeros(1, 1, n, 2), pos[:, None])
    mask = attention_mask(pos, kv, n, causal, window, own_tokens_only=True)
    codes = explain_mask(mask, pos, kv, n, causal, window is not None)[0].tolist()
    assert ["".join(".PFWD"[code] for code in row) for row in codes][: len(expected)] == expected


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"attention": {"name": "softmax", "qk_norm": True, "softcap": 2.0, "scale": 0.3}},
        {"attention": {"name": "softmax", "window": 3, "sink": 1}, "position": "shaw"},
        {"attention": "kernel", "n_kv_heads": 2, "position": "rope"},
        {"attention": "linear", "position": "rope"},
        {"attention": "linear", "n_kv_heads": 2},
        {"position": "disentangled"},
    ],
    ids=str,
)
def test_weights_match_hooks_of_forward_pass(config):
    run = make_run(**config)
    document = explain_walk(run, TEXT, TARGET)
    read = read_document(document)
    with torch.inference_mode(), record_attention(run.model) as passes:
        run.model(*make_inputs(document))
    for path, (weights,) in passes.items():
        array = read(f"{path}.weights")
        assert array.shape == weights[0].shape
        assert np.abs(array - weights[0].numpy()).max() < 1e-6, path
    assert len(passes) == 6


def test_linear_attention_state_gives_next_output():
    config = {"kind": "decoder", "attention": "linear", "position": "none"}
    _, read = explain_config(config)
    path = "stack.layers.0.attn"
    phi_k, v, state = (read(f"{path}.{role}") for role in ("phi_k", "v", "state"))
    values = np.concatenate([v, np.ones_like(v[..., :1])], -1)
    assert state == pytest.approx(phi_k.transpose(0, 2, 1) @ values, abs=1e-5)
    last = read(f"{path}.phi_q")[:, -1:] @ state
    heads_out = (last[..., :-1] / (last[..., -1:] + 1e-6))[:, 0].reshape(-1)
    o_proj = make_run(**config).model.stack.layers[0].attn.o_proj
    out = heads_out @ o_proj.weight.detach().numpy().T + o_proj.bias.detach().numpy()
    assert read(f"{path}.out")[-1] == pytest.approx(out, abs=1e-5)


@pytest.mark.parametrize("position", ["none", "rope"])
def test_linear_state_of_window_continues_earlier_tokens(position):
    config = {"kind": "decoder", "attention": "linear", "position": position}
    path, roles = "stack.layers.0.attn", ("phi_q", "phi_k", "v")
    _, whole = explain_config(config)
    _, read = explain_config(config, first=3, n_shown=5)
    features = [whole(f"{path}.{role}").astype(float) for role in roles]
    norm_q, norm_k = (
        whole(f"{path}.norm_{role}") if position == "rope" else features["qk".index(role)] for role in "qk"
    )
    phi_q, phi_k, v = features

    def sum_until(stop):
        sums = np.einsum("hsp,hsd->hpd", phi_k[:, :stop], v[:, :stop])
        return np.concatenate([sums, norm_k[:, :stop].sum(1)[..., None]], -1)

    assert read(f"{path}.start") == pytest.approx(sum_until(3), abs=1e-5)
    assert read(f"{path}.state") == pytest.approx(sum_until(8), abs=1e-5)
    state = sum_until(6)
    read_out = np.einsum("hp,hpd->hd", phi_q[:, 5], state[..., :-1])
    read_out /= np.einsum("hp,hp->h", norm_q[:, 5], state[..., -1])[:, None] + 1e-6
    assert np.einsum("hs,hsd->hd", whole(f"{path}.weights")[:, 5], v) == pytest.approx(read_out, abs=1e-5)


def explain_scheme(config, **options):
    document, read = explain_config(config, **options)
    return list_steps(document, "position")[0], list_steps(document, "attention"), read


def test_rope_angles_and_alibi_slopes():
    step, _, read = explain_scheme({"kind": "decoder", "position": {"name": "rope", "theta": 100.0}})
    rate = 100.0 ** (-np.arange(0, 8, 2) / 8)
    assert read(step["values"]["rate"]) == pytest.approx(rate, rel=1e-6)
    cos, sin = read(step["values"]["cos"]), read(step["values"]["sin"])
    angle = np.arange(len(cos))[:, None] * rate
    assert cos == pytest.approx(np.cos(angle), abs=1e-6)
    assert sin == pytest.approx(np.sin(angle), abs=1e-6)
    assert step["facts"]["theta"] == 100.0
    step, (attention, *_), read = explain_scheme({"kind": "decoder", "position": "alibi"})
    slopes = read(step["values"]["slopes"])
    assert slopes.tolist() == pytest.approx([1 / 4, 1 / 16, 1 / 64, 1 / 256], rel=1e-6)
    bias = read(attention["values"]["bias"])
    distance = np.abs(np.arange(bias.shape[1])[:, None] - np.arange(bias.shape[2]))
    assert bias == pytest.approx(-slopes[:, None, None] * distance, abs=1e-6)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_t5_buckets_match_transformers(kind):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    position = {"name": "t5", "buckets": 8, "max_distance": 9}
    _, attentions, read = explain_scheme({"kind": kind, "position": position}, first=2, n_shown=9)
    distance = torch.arange(9) - torch.arange(9)[:, None]
    expected = t5._relative_position_bucket(distance, kind == "encoder", 8, 9).tolist()
    assert [read(step["values"]["index"]).tolist() for step in attentions] == [expected] * 2
    if kind == "encoder":
        step, _, read = explain_scheme({"kind": kind, "position": "t5"}, first=2, n_shown=5)
        expected = [[t5_bucket(s - t) for s in range(5)] for t in range(5)]
        assert read(step["values"]["index"]).tolist() == expected


def test_shaw_distances_and_bias():
    config = {"kind": "encoder", "position": {"name": "shaw", "clip": 3}}
    step, attentions, read = explain_scheme(config, first=2, n_shown=9)
    expected = [[min(max(s - t, -3), 3) + 3 for s in range(9)] for t in range(9)]
    assert [read(step["values"]["index"]).tolist() for step in attentions] == [expected] * 2
    values, scale = attentions[0]["values"], attentions[0]["facts"]["scale"]
    keys = read(step["values"]["key"])[np.array(expected)]
    bias = np.einsum("htd,tsd->hts", read(values["q"]), keys) * scale
    assert read(values["bias"]) == pytest.approx(bias, abs=1e-5)


# 16 vectors in each direction are more than the text needs
@pytest.mark.parametrize(("span", "max_distance"), [(4, None), (4, 9), (16, None), (16, 20)])
@pytest.mark.parametrize("terms", ["both", "c2p", "p2c"])
def test_deberta_bias_is_two_products(terms, span, max_distance):
    """Query with the distance as a key, key with the distance as a query (He et al., 2021a, eq. 4)."""
    deberta = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    position = {"name": "disentangled", "span": span, "max_distance": max_distance, "terms": terms}
    config = {"kind": "encoder", "position": position}
    _, attentions, read = explain_scheme(config, first=2, n_shown=9)
    distance = torch.arange(9)[:, None] - torch.arange(9)
    if max_distance is not None:
        distance = deberta.make_log_bucket_position(distance, span, max_distance).long()
    index = (distance.clamp(-span, span - 1) + span).numpy()
    layers = make_run(**config).model.encoder.stack.layers
    for step, layer in zip(attentions, layers, strict=True):
        values, attn, scale = step["values"], layer.attn, step["facts"]["scale"]
        assert read(values["index"]).tolist() == index.tolist()
        with torch.no_grad():
            vectors = attn.position.norm(attn.position.weight)
            queries, keys = (
                proj(vectors).double().unflatten(-1, (4, 8)).transpose(0, 1).numpy()[:, index]
                for proj in (attn.q_proj, attn.k_proj)
            )
        products = {
            "c2p": np.einsum("htd,htsd->hts", read(values["q"]), keys) * scale,
            "p2c": np.einsum("hsd,htsd->hts", read(values["k"]), queries) * scale,
        }
        bias = sum(product for role, product in products.items() if terms in ("both", role))
        assert read(values["bias"]) == pytest.approx(bias, abs=1e-5)
        for role, product in products.items():
            assert (role in values) == (terms == "both")
            assert role not in values or read(values[role]) == pytest.approx(product, abs=1e-5)


def test_steps_of_stacks_and_learned_rows():
    document, _ = explain_config({"position": "rope"})
    steps = list_steps(document, "position")
    paths = [f"{stack}.layers.0.attn.position" for stack in ("encoder", "decoder")]
    assert [step["path"] for step in steps] == paths
    attentions = [step for step in document["walk"] if step["role"] == "attn"]
    tables = {document["values"][step["values"]["q"]]["cos"] for step in attentions}
    assert tables == {step["values"]["cos"] for step in steps}
    config = {"kind": "decoder", "position": {"name": "learned", "offset": 2}}
    step, _, read = explain_scheme(config, first=3, n_shown=4)
    weight = make_run(**config).model.embedding.position.weight.detach().numpy()
    assert read(step["values"]["rows"]) == pytest.approx(weight[5:9], abs=1e-6)
