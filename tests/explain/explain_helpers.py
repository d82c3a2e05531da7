import base64
import math
import zlib
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.explain.arrays import ArrayReader
from polyhead.explain.document import explain
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXT, TARGET = "a dog barks at the red house", "ein hund bellt am haus"
TEXTS = [TEXT, TARGET, "two cats sleep", "zwei katzen schlafen"] * 5
SIZES = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "max_len": 64}
PRE_NORM = {"kind": "decoder", "norm_first": True}
TANH_GELU = {"name": "gelu", "tanh": True}
LLAMA = {"position": "rope", "norm": "rmsnorm", "n_kv_heads": 2, "feed_forward": "swiglu"}
WINDOW = {"name": "softmax", "window": 3}
# the config of a design, and what ReferenceWalk must know of it
DESIGNS = {
    "GPT-2": (PRE_NORM | {"position": "learned", "feed_forward": TANH_GELU, "tie_embeddings": "all"}, {}),
    "Vaswani et al.": ({"norm_first": False}, {}),
    "Llama": (PRE_NORM | LLAMA, {"rope": True}),
    "ALiBi and a window": (
        PRE_NORM | {"position": "alibi", "attention": WINDOW},
        {"alibi": True, "window": 3},
    ),
    "masked encoder with T5 bias": ({"kind": "encoder", "position": "t5"}, {"t5": True}),
}


@cache
def make_tokenizer():
    return train_tokenizer(TEXTS, Choice("bpe"), 300)


def make_run(seed=0, generation=None, **config):
    """A run whose weights, also biases and norms, are random."""
    tokenizer = make_tokenizer()
    model = build(ModelConfig(vocab_size=tokenizer.vocab_size, **SIZES | config), seed=seed).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return Run(model, tokenizer, GenerationConfig(**generation or {}))


def explain_walk(run, text=TEXT, target=None, **options):
    """An explanation without cases of levers, which take most of the time."""
    return explain(run, text, target, has_lever_cases=False, **options)


def explain_design(config, text=TEXT, target=None, **options):
    """The run of a config and the explanation of a text; a translator has TARGET."""
    run = make_run(**config)
    if run.kind == "encoder-decoder":
        target = target or TARGET
    return run, explain_walk(run, text, target, **options)


def explain_config(config, target=None, **options):
    """The document of a config, and a reader of its arrays."""
    _, document = explain_design(config, target=target, **options)
    return document, read_document(document)


def read_document(document):
    """A reader of the arrays of an explanation, written without that of the package."""
    text = document["data"].translate(str.maketrans(".,:", "<>&"))
    values, blob = document["values"], zlib.decompress(base64.b85decode(text))

    def read_stored(name):
        value = values[name]
        size = int(np.prod(value["shape"]))
        zigzag = np.zeros(size, np.int64)
        for i, start in enumerate(value["at"]):
            zigzag |= np.frombuffer(blob, np.uint8, size, start).astype(np.int64) << 8 * i
        return (((zigzag >> 1) ^ -(zigzag & 1)) * value["scale"]).reshape(value["shape"])

    return ArrayReader(values, read_stored)


def list_steps(document, kind):
    return [step for step in document["walk"] if step["kind"] == kind]


def make_inputs(document):
    return [torch.tensor([[token["id"] for token in side["tokens"]]]) for side in document["sides"]]


def check_close(array, expected, rel=1e-6):
    """Equal shapes, and numbers relative to the largest one, or to 1."""
    reference = torch.as_tensor(expected).detach().double().numpy()
    assert np.asarray(array).shape == reference.shape
    assert np.abs(np.asarray(array) - reference).max() <= rel * max(1.0, float(np.abs(reference).max()))


class ReferenceWalk:
    """The forward pass of a Transformer by its equations, with every number by the name of its array.

    ``alibi``, ``window`` and ``t5`` describe the self-attention of the design.
    """

    def __init__(self, *, rope=False, alibi=False, window=0, t5=False):
        self.rope, self.alibi, self.window, self.t5 = rope, alibi, window, t5
        self.arrays = {}

    def record(self, name, x):
        self.arrays[name] = x
        return x

    def norm(self, path, norm, x):
        if hasattr(norm, "bias"):
            mean = self.record(f"{path}.mean", x.mean(-1))
            variance = self.record(f"{path}.variance", ((x - mean[:, None]) ** 2).mean(-1))
            y = (x - mean[:, None]) / (variance + norm.eps).sqrt()[:, None] * norm.weight + norm.bias
        else:
            square = self.record(f"{path}.mean_square", (x * x).mean(-1))
            y = x / (square + norm.eps).sqrt()[:, None] * norm.weight
        return self.record(f"{path}.out", y)

    def stack(self, path, stack, x, memory=None):
        for i, layer in enumerate(stack.layers):
            for role in ("attn", "cross", "ffn"):
                part = getattr(layer, role)
                if part is None:
                    continue
                residual = getattr(layer, f"{role}_residual")
                part_path, residual_path = (
                    f"{path}.layers.{i}.{name}" for name in (role, f"{role}_residual")
                )
                h = self.norm(f"{residual_path}.norm", residual.norm, x) if residual.norm_first else x
                if role == "ffn":
                    out = self.feed_forward(part, h)
                else:
                    out = self.attention(part_path, part, h, memory if role == "cross" else None)
                x = self.record(f"{residual_path}.out", x + self.record(f"{part_path}.out", out))
                x = x if residual.norm_first else self.norm(f"{residual_path}.norm", residual.norm, x)
        return x if stack.final_norm is None else self.norm(f"{path}.final_norm", stack.final_norm, x)

    def attention(self, path, attn, x, memory):
        is_self, D = memory is None, attn.head_dim
        source = x if memory is None else memory

        def split_heads(proj, y):
            return F.linear(y, proj.weight, proj.bias).view(len(y), -1, D).transpose(0, 1)

        q, k, v = (
            split_heads(*pair) for pair in ((attn.q_proj, x), (attn.k_proj, source), (attn.v_proj, source))
        )
        if self.rope and is_self:
            q, k = rotate(self.record(f"{path}.q_raw", q)), rotate(self.record(f"{path}.k_raw", k))
        for role, y in {"q": q, "k": k, "v": v}.items():
            self.record(f"{path}.{role}", y)
        H, T, S = len(q), len(x), len(source)
        k, v = (y.repeat_interleave(H // len(y), 0) for y in (k, v))
        scores = q @ k.mT / math.sqrt(D)
        query, key = torch.arange(T)[:, None], torch.arange(S)
        hidden = torch.zeros(T, S, dtype=torch.int64)
        if is_self and self.alibi:
            slopes = torch.tensor([2.0 ** (-8 * (h + 1) / H) for h in range(H)])
            scores = scores - slopes[:, None, None] * (query - key).abs()
        if is_self and self.t5:
            buckets = torch.tensor([[t5_bucket(s - t) for s in range(S)] for t in range(T)])
            scores = scores + attn.position.weight[buckets].permute(2, 0, 1)
        if is_self and attn.causal:
            hidden[key > query] = 2
        if is_self and self.window:
            hidden[(query - key >= self.window) & (hidden == 0)] = 3
        self.record(f"{path}.hidden", hidden[None])
        self.record(f"{path}.scores", scores.masked_fill(hidden != 0, 0.0))
        weights = self.record(f"{path}.weights", scores.masked_fill(hidden != 0, -math.inf).softmax(-1))
        mix = self.record(f"{path}.mix", weights @ v)
        heads_out = self.record(f"{path}.joined", mix.transpose(0, 1).reshape(T, -1))
        return F.linear(heads_out, attn.o_proj.weight, attn.o_proj.bias)

    def feed_forward(self, ffn, x):
        if hasattr(ffn, "gate_proj"):
            inner = F.silu(F.linear(x, ffn.gate_proj.weight)) * F.linear(x, ffn.up_proj.weight)
            return F.linear(inner, ffn.down_proj.weight)
        inner = F.linear(x, ffn.up_proj.weight, ffn.up_proj.bias)
        is_gelu = isinstance(ffn.activation, torch.nn.GELU)
        inner = F.gelu(inner, approximate="tanh") if is_gelu else inner.relu()
        return F.linear(inner, ffn.down_proj.weight, ffn.down_proj.bias)

    def embed(self, path, embedding, ids):
        rows = self.record(f"{path}.rows", embedding.token.weight[ids[0]])
        x = self.record(f"{path}.scaled", rows * embedding.scale)
        if hasattr(embedding.position, "table"):
            position_rows = sinusoid(len(x), rows.size(1))
        elif hasattr(embedding.position, "offset"):
            position_rows = embedding.position.weight[: len(x)]
        else:
            return x
        return self.record(f"{path}.position.out", x + self.record(f"{path}.position.rows", position_rows))


@torch.no_grad()
def walk_model(run, document, walk):
    model, ids = run.model, make_inputs(document)
    if run.kind == "encoder-decoder":
        source = walk.embed("encoder_embedding", model.encoder_embedding, ids[0])
        memory = walk.stack("encoder", model.encoder, source)
        x = walk.embed("decoder_embedding", model.decoder_embedding, ids[1])
        return walk.stack("decoder", model.decoder, x, memory)
    path, stack = ("encoder.", model.encoder) if run.kind == "encoder" else ("", model)
    x = walk.embed(f"{path}embedding", stack.embedding, ids[0])
    x = walk.stack(f"{path}stack", stack.stack, x)
    if run.kind == "decoder":
        return x
    x = walk.record("transform.out", F.linear(x, model.transform.weight, model.transform.bias))
    return walk.norm("transform_norm", model.transform_norm, walk.record("activation.out", F.gelu(x)))


def rotate(x):
    """Pairs (j, j + D/2) as complex numbers, times exp(i t θ^(-2j/D))."""
    D = x.size(-1)
    rate = 10000.0 ** (-torch.arange(0, D, 2) / D)
    turn = torch.polar(torch.ones(()), torch.arange(x.size(1))[:, None] * rate)
    y = torch.complex(x[..., : D // 2], x[..., D // 2 :]) * turn
    return torch.cat([y.real, y.imag], -1)


def t5_bucket(distance):
    """The bucket of an encoder's distance, of 32 up to 128 (Raffel et al., 2020), without tensors."""
    offset, size = (16 if distance > 0 else 0), abs(distance)
    if size < 8:
        return offset + size
    return offset + min(15, 8 + int(math.log(size / 8) / math.log(128 / 8) * 8))


def sinusoid(length, width):
    """sin(t / 10000^(2j/C)) and cos in turn (Vaswani et al., 2017, sec. 3.5)."""
    angles = [[t / 10000 ** ((j - j % 2) / width) for j in range(width)] for t in range(length)]
    return torch.tensor([[(math.cos if j % 2 else math.sin)(a) for j, a in enumerate(row)] for row in angles])
