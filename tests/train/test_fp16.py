import pytest
import torch
from tests.train.conftest import Toy, equal_states, loop_config, toy_model, train_toy, user_error
from tests.train.test_loop import GradientCatcher

from polyhead import ModelConfig, build
from polyhead.nn.loss import Loss, cross_entropy
from polyhead.train.loop import train_step
from polyhead.train.precision import LossScale
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.train_state import TrainState
from polyhead.train.update import record_step

pytestmark = pytest.mark.usefixtures("no_fsync")


def fp16_config(**changes):
    return loop_config(**{"precision": "fp16"} | changes)


def catch_gradients(model, task, batch, precision):
    config = fp16_config(precision=precision, clip_norm=0)
    training = TrainState(model, config, 16, 1)
    training.optimizers = [GradientCatcher(model)]
    training.progress.step = 1
    strategy = parallelize(training, task, config)
    assert record_step(training.progress, train_step(strategy, [batch]).read()) == ""
    return training.optimizers[0].grads[0]


class RandomTokens:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(2)
        self.source, self.target = torch.randint(4, 20, (2, 6, 9), generator=generator)

    def count_labels(self, batch):
        return self.target.numel()

    def loss(self, model, batch) -> Loss:
        return cross_entropy(model.features(self.source, self.target), model.head, self.source)


def test_gradients_match_fp32_within_rounding():
    """Of a model with experts, whose balance has a gradient that comes from no loss."""
    sizes = {"vocab_size": 20, "d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_len": 16}
    experts = {"name": "moe", "n_experts": 4, "top_k": 2}
    model = build(ModelConfig(dropout=0.0, attention="softmax", feed_forward=experts, **sizes), seed=3)
    names = [name for name, _ in model.named_parameters()]
    expected, actual = (
        dict(zip(names, catch_gradients(model, RandomTokens(), 0, precision), strict=True))
        for precision in ("fp32", "fp16")
    )
    for name, grad in actual.items():
        assert grad.dtype is torch.float32
        if name.endswith("balance"):
            assert torch.equal(grad, expected[name]) and grad.any(), name
        else:
            # that of biases of keys is rounding only; processors with AVX512-FP16 also add in fp16
            assert (grad - expected[name]).norm() < 0.1 * expected[name].norm() + 5e-5, name
    assert sum(grad.norm() > 5e-3 for grad in expected.values()) > 30


class TinyLoss(Toy):
    def loss(self, model, batch) -> Loss:
        total = 1e-8 * model(self.x[batch]).sum()
        return Loss(total, total.detach(), len(batch))


def test_loss_scale_keeps_tiny_gradients(monkeypatch):
    def catch(precision):
        return catch_gradients(toy_model().eval(), TinyLoss(), list(range(4)), precision)[0]

    torch.testing.assert_close(catch("fp16"), catch("fp32"), rtol=0.01, atol=1e-11)
    monkeypatch.setattr(LossScale, "INIT_SCALE", 1.0)
    assert not catch("fp16").any() and catch("fp32").any()


def test_loss_scale_halves_on_overflow_and_doubles_later():
    scale, value, n_good = LossScale(), 2.0**16, 0
    generator = torch.Generator().manual_seed(1)
    events = [True] * 2500 + torch.randint(0, 30, (3000,), generator=generator).bool().tolist() + [False] * 40
    for is_finite in events:
        last_value, n_good = value, (n_good + 1) * is_finite
        if not is_finite:
            value = max(1.0, value / 2)
        elif n_good == 2000:
            value, n_good = value * 2, 0
        assert scale.update(is_finite) == (value < last_value)
        assert (scale.value, scale.n_good_steps) == (value, n_good)
    assert scale.value == 1.0


def test_overflowing_steps_are_skipped_with_lower_scale(tmp_path, monkeypatch):
    """However many: they do not count as divergence."""
    monkeypatch.setattr(LossScale, "INIT_SCALE", 2.0**34)
    training, outcome, notes = train_toy(tmp_path, Toy(), fp16_config(steps=40))
    with user_error("not finite"):  # unlike an infinite loss
        train_toy(tmp_path / "infinite", Toy(), fp16_config(steps=60, lr=1e20, schedule="constant"))
    messages = [line.partition(": ")[2] for line in notes.lines]
    n = len(messages)
    assert n > 12 and (outcome.status, training.progress.skipped) == ("done", n)
    message = "gradients overflow in fp16, so the loss is scaled by {:g} from now on; skipped"
    assert messages == [message.format(2.0 ** (34 - i)) for i in range(1, n + 1)]
    assert training.loss_scale.value == 2.0 ** (34 - n)
    assert len(notes.series("loss")) == 40 and notes.series("loss")[-1] > 0


@pytest.mark.acceptance("B11")
def test_stopped_run_resumes_with_its_loss_scale(tmp_path, monkeypatch):
    monkeypatch.setattr(LossScale, "INIT_SCALE", 2.0**30)
    monkeypatch.setattr(LossScale, "GROWTH_INTERVAL", 5)
    config = fp16_config(steps=30, ema=0.8)
    expected, _, _ = train_toy(tmp_path / "all", Toy(), config)
    assert expected.progress.skipped > 10
    for k in range(1, 30, 3):
        train_toy(tmp_path / str(k), Toy(), config, stop_at=k)
        resumed_state, _, _ = train_toy(tmp_path / str(k), Toy(), config, resume=True)
        assert resumed_state.loss_scale.to_json() == expected.loss_scale.to_json()
        assert equal_states(resumed_state, expected), k


def test_precision_may_change_on_resume(tmp_path):
    train_toy(tmp_path, Toy(), fp16_config(precision="fp32"), stop_at=4)
    training, outcome, _ = train_toy(tmp_path, Toy(), fp16_config(), resume=True)
    assert outcome.status == "done" and training.loss_scale.n_good_steps > 3
    train_toy(tmp_path / "b", Toy(), fp16_config(), stop_at=4)
    resumed_state, _, _ = train_toy(tmp_path / "b", Toy(), fp16_config(precision="fp32"), resume=True)
    assert resumed_state.loss_scale is None
