from polyhead_lab.registry import TEXT
from polyhead_lab.short_training import FIRST_HELD_OUT
from polyhead_lab.text_task import make_loss_claims, make_text_task
from polyhead_lab.tokens import read_docstrings


def test_held_out_windows_come_from_last_tenth():
    text = "".join(read_docstrings()).encode()
    task = make_text_task(40, train_bytes=100)
    cut = len(text) * 9 // 10
    for number, part in ((FIRST_HELD_OUT, text[cut:]), (0, text[:100])):
        batch = task.batch(1, number, 50)
        for tokens, labels in zip(batch.target.tolist(), batch.labels.tolist(), strict=True):
            assert bytes([tokens[0], *labels]) in part
            assert tokens[1:] == labels[:-1]


def test_claim_compares_losses_of_same_seeds():
    losses = {TEXT: {"a": [1.0, 2.0, 3.0], "b": [1.2, 2.21, 3.19]}}
    assert [claim.is_supported for claim in make_loss_claims("", "", losses, "a", "b")] == [True]
    (claim,) = make_loss_claims("", "", losses, "b", "a", -0.25)
    assert claim.measurement == "b against a: 2.2 ± 2.5 against 2 ± 2.5 (margin: -0.25 nats)."
    assert claim.is_supported and claim.material == TEXT
