"""Whether queries, keys and values need a projection each."""

from __future__ import annotations

from polyhead.lab.catalogue import LAB, Bench
from polyhead.lab.learn import Learned, by_task, loss_dots, loss_plot, losses, slowness, slowness_dots
from polyhead.lab.result import Claim, Figure, Result, Table
from polyhead.lab.tasks import COPY_AND_RECALL
from polyhead.lab.verdict import all_of, less, said
from polyhead.registry import Choice

TIES = {"none": "Q, K, V", "kv": "Q, K=V", "qk": "Q=K, V", "qkv": "Q=K=V"}
TASKS = COPY_AND_RECALL
WORSE = 0.1  # nats a token that count as worse


@LAB.register("tied-qkv")
def tied(bench: Bench) -> Result:
    """Queries, keys and values from one, two or three projections: quality and parameters."""
    designs = {tie: {"attention": Choice("softmax", tie=tie)} for tie in TIES}
    runs = by_task(bench, TASKS, designs, "{task}, seed {seed}, tie {name}")
    loss = {task: losses(cells) for task, cells in runs.items()}
    slow = {task: slowness(cells) for task, cells in runs.items()}
    parameters = {tie: rs[0].parameters for tie, rs in runs["recall"].items()}
    matrices = {tie: projections(rs[0]) for tie, rs in runs["recall"].items()}

    def claim(tie: str, sentence: str, source: str) -> Claim:
        measured = "; ".join(
            f"{task}: {said(loss[task][tie])} against {said(loss[task]['none'])} at the end, {said(slow[task][tie])} "
            f"against {said(slow[task]['none'])} on average over training"
            for task in TASKS
        )
        verdict = all_of(
            less(of[task][tie], of[task]["none"], -WORSE) for of in (loss, slow) for task in TASKS
        )
        return Claim(
            sentence,
            source,
            f"Loss, {measured}, of three projections (hurts: either {WORSE} nats worse or more).",
            verdict,
        )

    claims = [
        Claim(
            "Each tie saves one projection of three in every attention.",
            "by counting",
            ", ".join(f"{TIES[tie]}: {matrices[tie]:,} weights and biases" for tie in TIES)
            + " of query, key and value projections.",
            all(
                3 * matrices[tie] == n * matrices["none"]
                for tie, n in {"none": 3, "kv": 2, "qk": 2, "qkv": 1}.items()
            ),
        ),
        claim("kv", "Sharing keys and values (K=V) does not hurt.", "left open by the literature"),
        claim(
            "qk",
            "Sharing queries and keys (Q=K) does not hurt.",
            "Kitaev et al., 2020 (Reformer), section 5: shared-QK attention",
        ),
        claim("qkv", "One projection for all three (Q=K=V) does not hurt.", "left open by the literature"),
    ]
    figures: list[Figure] = [
        loss_dots(task, {TIES[tie]: cells[tie] for tie in TIES}) for task, cells in loss.items()
    ]
    figures += [slowness_dots(task, {TIES[tie]: cells[tie] for tie in TIES}) for task, cells in slow.items()]
    figures += [loss_plot(task, {TIES[tie]: cells[tie] for tie in TIES}) for task, cells in runs.items()]
    figures.append(
        Table(
            "All numbers",
            ("projections", "parameters of the model", *(f"loss, {task}" for task in TASKS)),
            [(TIES[tie], parameters[tie], *(said(loss[task][tie]) for task in TASKS)) for tie in TIES],
        )
    )
    return Result(
        "One, two or three projections",
        "Attention asks with queries, answers to keys and hands over values, each a projection of its own. Some of them may "
        "be shared: that saves parameters, and with K=V half of the cache could be spared. Does it hurt?",
        claims,
        figures,
        "Encoder-decoders of 2+2 layers, d_model 64, 4 heads, pre-norm, sinusoidal positions; "
        + ", ".join(f"{task} {bench.size(steps, 4)} steps" for task, (_, steps) in TASKS.items())
        + f"; {len(bench.seeds(3))} seeds, which share data between designs. The tie holds in encoder, decoder and cross-"
        "attention; in the latter queries read the target and keys the source, through one matrix.",
    )


def projections(run: Learned) -> int:
    """Weights and biases of all query, key and value projections, shared ones once."""
    named = run.model.named_parameters()
    return sum(p.numel() for name, p in named if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj"))
