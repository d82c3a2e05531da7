"""What benchmarks share: timing in turns, the same model in other libraries, and the choice of a
measurement.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.models import Seq2Seq
from polyhead.nn.position.absolute import sinusoids


def run_measurement(title: str, *measurements: Callable[[argparse.ArgumentParser], None]) -> None:
    """Run the measurement that the first argument names; it adds its options to the parser and reads them."""
    by_name = {measurement.__name__: measurement for measurement in measurements}
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in by_name:
        lines = [f"  {key:<11} {(run.__doc__ or '').splitlines()[0]}" for key, run in by_name.items()]
        print("\n".join([title, "", *lines, "", "NAME --help lists the options of a measurement."]))
        sys.exit(
            0
            if name in ("", "-h", "--help")
            else f"unknown measurement {name!r}; known: {', '.join(by_name)}"
        )
    run = by_name[name]
    run(
        argparse.ArgumentParser(
            prog=f"{Path(sys.argv[0]).stem} {name}",
            description=run.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )


def interleaved(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call, in turn: name -> one figure a round. ``time.process_time`` does not count what
    others run.
    """
    for _ in range(warmup):
        for run in contestants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


PEAK_BYTES: dict[str, int] = {}
"""The most memory of each contestant that ran last in a process of its own."""


@contextmanager
def apart(
    builders: Mapping[str, Callable[[Any], Callable[[], object]]], options: Any
) -> Iterator[dict[str, Callable[[], Any]]]:
    """Each contestant in a process of its own, as its users run it: a builder makes
    there what a call runs.
    """
    context = get_context("spawn")
    calls: dict[str, Callable[[], Any]] = {}
    processes = []
    for name, builder in builders.items():
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(builder, options, theirs), daemon=True)
        process.start()
        theirs.close()  # so that a process that fails ends the wait
        processes.append(process)
        assert ours.recv() == "ready"
        calls[name] = lambda ours=ours: (ours.send("go"), ours.recv())[1]  # type: ignore[misc]
    try:
        yield calls
    finally:
        for name, process in zip(calls, processes, strict=True):
            if process.is_alive():
                PEAK_BYTES[name] = memory("VmHWM", str(process.pid))
            process.kill()


def _serve(builder: Callable[[Any], Callable[[], object]], options: Any, pipe: Connection) -> None:
    run = builder(options)
    pipe.send("ready")
    while pipe.recv():
        pipe.send(run())


def ratio(slower: list[float], faster: list[float]) -> float:
    """How many times faster: the median of the ratios, pair by pair."""
    return statistics.median(a / b for a, b in zip(slower, faster, strict=True))


def table(rows: list[list[str]]) -> str:
    """Rows as a Markdown table; the first is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def differences(config: ModelConfig) -> str:
    """What Hugging Face has no equal translator for, as names of our settings; empty if there is one."""
    sizes = {"kind", "vocab_size", "d_model", "n_layers", "n_decoder_layers", "n_heads", "d_ff", "max_len",
        "norm_first",
             "dropout", "scale_embedding", "init"}  # fmt: skip
    parts: dict[str, object] = {"attention": Choice("softmax", dropout=dropout(config.attention))}
    if config.position.name in ("sinusoidal", "learned"):
        parts["position"] = config.position
    if config.feed_forward.name in ACTIVATIONS:
        parts["feed_forward"] = Choice(config.feed_forward.name, dropout=dropout(config.feed_forward))
    theirs = ModelConfig.model_validate({name: getattr(config, name) for name in sizes} | parts)
    fields = ModelConfig.model_fields
    return ", ".join(name for name in fields if getattr(theirs, name) != getattr(config, name))


def dropout(part: Choice) -> float:
    """That of a part which has it as an option."""
    return float(part.options.get("dropout", 0.0))


def twin(model: Seq2Seq, pad_id: int, bos_id: int, eos_id: int) -> nn.Module:
    """Hugging Face's model of the same equations with the same weights: Marian's for post-norm, Pegasus' for
    pre-norm.
    """
    import transformers

    c = model.config
    assert not differences(c), differences(c)
    options = {
        "vocab_size": c.vocab_size, "d_model": c.d_model, "max_position_embeddings": c.max_len,
        "encoder_layers": c.n_layers, "encoder_attention_heads": c.n_heads, "encoder_ffn_dim": c.d_ff,
        "decoder_layers": c.decoder_layers, "decoder_attention_heads": c.n_heads, "decoder_ffn_dim": c.d_ff,
        "activation_function": ACTIVATIONS[c.feed_forward.name], "scale_embedding": c.scale_embedding,
        "dropout": c.dropout, "attention_dropout": dropout(c.attention),
            "activation_dropout": dropout(c.feed_forward),
        "pad_token_id": pad_id, "eos_token_id": eos_id, "bos_token_id": bos_id,
        "decoder_start_token_id": bos_id,
        "forced_eos_token_id": None,
    }  # fmt: skip
    if c.norm_first:
        theirs = transformers.PegasusForConditionalGeneration(transformers.PegasusConfig(**options))
    else:
        theirs = transformers.MarianMTModel(transformers.MarianConfig(**options))
    weights = {"model.shared.weight": model.head.weight}
    embeddings = {"encoder": model.encoder_embedding, "decoder": model.decoder_embedding}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        weights[f"model.{side}.embed_positions.weight"] = embeddings[side].position.embed(
            torch.zeros(1, c.max_len, c.d_model), None
        )[0]
        for name, tensor in stack.named_parameters():
            if ".position." not in name:  # theirs lie in their embeddings
                weights[f"model.{side}.{_their_name(name)}"] = tensor
    missing, unexpected = theirs.load_state_dict(
        {k: v.detach().clone() for k, v in weights.items()}, strict=False
    )
    tied = {
        "final_logits_bias",
        "lm_head.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
    }
    assert not unexpected and set(missing) <= tied, (missing, unexpected)
    return theirs


ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "tanh": "tanh"}

THEIR_NAMES = {
    "attn_residual.norm": "self_attn_layer_norm", "cross_residual.norm": "encoder_attn_layer_norm",
    "ffn_residual.norm": "final_layer_norm", "attn.o_proj": "self_attn.out_proj",
    "cross.o_proj": "encoder_attn.out_proj",
    "ffn.up_proj": "fc1", "ffn.down_proj": "fc2", "attn.": "self_attn.", "cross.": "encoder_attn.",
}  # fmt: skip


def _their_name(name: str) -> str:
    name = name.replace("final_norm.", "layer_norm.")
    for ours, theirs in THEIR_NAMES.items():
        if f".{ours}" in name:
            return name.replace(f".{ours}", f".{theirs}")
    return name


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings, positions and a tied output layer: what its
    documentation shows.
    """

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        c = model.config
        self.embedding = nn.Embedding(c.vocab_size, c.d_model)
        self.embedding.weight.data.copy_(model.head.weight.data)
        self.register_buffer("table", sinusoids(c.max_len, c.d_model))
        self.dropout, self.scale = nn.Dropout(c.dropout), c.d_model**0.5
        assert c.d_ff is not None
        self.body = nn.Transformer(
            c.d_model,
            c.n_heads,
            c.n_layers,
            c.decoder_layers,
            c.d_ff,
            c.dropout,
            batch_first=True,
            norm_first=c.norm_first,
        )

    def forward(self, source: Tensor, target: Tensor, source_padding: Tensor | None) -> Tensor:
        """(B, S), (B, T), (B, S) True at padding -> logits (B, T, V)."""
        x, y = (
            self.dropout(self.embedding(t) * self.scale + self.table[: t.size(1)]) for t in (source, target)
        )
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        out = self.body(x, y, tgt_mask=causal, src_key_padding_mask=source_padding,
                        memory_key_padding_mask=source_padding, tgt_is_causal=True)  # fmt: skip
        return out @ self.embedding.weight.T


def memory(name: str, process: str = "self") -> int:
    """Bytes of a process, now or at the most."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
