"""Local training of each method against a plain loop of PyTorch over one client."""

import copy
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.models.network import FlatLayout
from ccfcpp.models.state import ModelState, build
from ccfcpp.models.steps import train_side_by_side
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig, FedDecorr
from supervised.local_training import LocalTrainer
from supervised.losses import decorrelation_term
from supervised.messages import Broadcast, LocalUpdate
from supervised.methods.class_logits import CalibrationConfig, RestrictedConfig
from supervised.methods.gradients import ProximalConfig, SharpnessConfig
from supervised.methods.moon import MoonConfig
from supervised.methods.scaffold import ControlledBroadcast, ControlledUpdate
from supervised.networks import Classifier
from supervised.setup import classifier_maker
from tests.support.classification import (
    CLASSES,
    SHAPE,
    SIZES,
    labelled_clients,
    normalisations,
    small_config,
)
from tests.support.federation import CPU
from tests.support.recording import Recorder

pytestmark = pytest.mark.usefixtures("double_precision")

LOCAL_METHODS: list[str] = [
    "fedavg",
    "fedprox",
    "moon",
    "scaffold",
    "fedbn",
    "fedrs",
    "fedlc",
    "fedsam",
]
ROUNDS = 2


def new_model(config: ClassifyConfig, seed: int) -> Classifier:
    make = classifier_maker(config, SHAPE, CLASSES)
    return build(make, Randomness(seed).generator("model"))


# --- the plain loop -----------------------------------------------------------------------------


@dataclass
class PlainClient:
    """A client, its setting, and the results of a round.

    Attributes:
        client: Its images.
        previous: Its model of the round before, None before the first.
        own: SCAFFOLD's c_i, by parameter.
        change: c_i⁺ − c_i of the last round.
        steps: Steps of the last round.
        loss: Mean loss of these.
        terms: The decorrelation term of each step, from the first round on.
    """

    client: Client
    previous: Classifier | None = None
    own: ModelState = field(default_factory=dict)
    change: ModelState = field(default_factory=dict)
    steps: int = 0
    loss: float | None = None
    terms: list[float] = field(default_factory=list)

    def train(
        self, config: ClassifyConfig, number: int, sent: Classifier, control: ModelState
    ) -> Classifier:
        """A round of local training from the model that was sent."""
        model = copy.deepcopy(sent)
        if config.method == "fedbn":
            self.take_up_normalisations(model)
        last = copy.deepcopy(self.previous or sent).eval()
        seen = copy.deepcopy(sent).eval()
        names = dict(model.named_parameters())
        own = self.own or {name: torch.zeros_like(p) for name, p in names.items()}
        training = config.training
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=training.learning_rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
        model.train()
        losses: list[float] = []
        for batch in self.batches(config, number):
            images = self.client.images[batch].double() / 255
            loss = self.loss_of(config, model, images, batch, seen, last)
            losses.append(loss.item())
            if config.method == "fedprox":
                for p, w in zip(model.parameters(), sent.parameters(), strict=True):
                    loss = (
                        loss
                        + config.section(ProximalConfig).mu / 2 * (p - w.detach()).square().sum()
                    )
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            if config.method == "fedsam":
                before = copy.deepcopy(list(model.parameters()))
                climb(model, config.section(SharpnessConfig).radius)
                again = self.loss_of(config, model, images, batch, seen, last)
                optimizer.zero_grad()
                torch.autograd.backward(again)
                with torch.no_grad():
                    for p, w in zip(model.parameters(), before, strict=True):
                        p.copy_(w)
            if config.method == "scaffold" and training.momentum == 0:
                # The paper's step y ← y − η(g − c_i + c), as it stands.
                for name, p in names.items():
                    assert p.grad is not None
                    p.grad += control[name] - own[name]
            optimizer.step()
            if config.method == "scaffold" and training.momentum > 0:
                with torch.no_grad():
                    for name, p in names.items():
                        p.sub_(training.learning_rate * (control[name] - own[name]))
        self.steps = len(losses)
        self.loss = sum(losses) / len(losses) if losses else None
        if config.method == "scaffold":
            self.move_control(sent, model, own, control, training.learning_rate)
        self.previous = model
        return model

    def batches(self, config: ClassifyConfig, number: int) -> list[Tensor]:
        """All epochs; a batch of a single sample is left out."""
        source = Randomness(config.seed, number, self.client.id)
        batches: list[Tensor] = []
        for epoch in range(config.training.local_epochs):
            generator = source.generator(f"batches {epoch}")
            order = torch.randperm(len(self.client), generator=generator)
            batches += torch.split(order, config.training.batch_size)
        return [batch for batch in batches if len(batch) > 1]

    def loss_of(
        self,
        config: ClassifyConfig,
        model: Classifier,
        images: Tensor,
        batch: Tensor,
        seen: Classifier,
        last: Classifier,
    ) -> Tensor:
        """Loss without FedProx's term."""
        assert self.client.labels is not None
        labels = self.client.labels[batch]
        z, logits = model(images)
        held = [int((self.client.labels == c).sum()) for c in range(CLASSES)]
        if config.method == "fedrs":
            factors = [
                1.0 if count else config.section(RestrictedConfig).strength for count in held
            ]
            logits = logits * torch.tensor(factors)
        if config.method == "fedlc":
            loss = self.calibrated(
                config.section(CalibrationConfig).temperature, logits, labels, held
            )
        else:
            loss = F.cross_entropy(logits, labels)
        if isinstance(config.decorrelation, FedDecorr):
            N, d = z.shape
            scored = (z - z.mean(0)) / torch.sqrt(z.var(0) + 1e-8)
            products = (scored.T @ scored)[~torch.eye(d, dtype=torch.bool)]
            term = products.pow(2).mean() / N
            self.terms.append(term.item())
            loss = loss + config.decorrelation.beta * term
        if config.method == "moon":
            with torch.no_grad():
                of_global, of_previous = seen(images)[0], last(images)[0]
            mu, tau = config.section(MoonConfig).mu, config.section(MoonConfig).temperature
            towards = torch.exp(F.cosine_similarity(z, of_global) / tau)
            away = torch.exp(F.cosine_similarity(z, of_previous) / tau)
            loss = loss - mu * torch.log(towards / (towards + away)).mean()
        return loss

    def calibrated(self, tau: float, logits: Tensor, labels: Tensor, held: list[int]) -> Tensor:
        """FedLC: −log(e^{f_y − τn_y^{−1/4}} / Σ_c e^{f_c − τn_c^{−1/4}}) over the classes held."""
        terms = []
        for f, y in zip(logits, labels.tolist(), strict=True):
            weights = {
                c: torch.exp(f[c] - tau * count**-0.25) for c, count in enumerate(held) if count
            }
            terms.append(-torch.log(weights[y] / torch.stack(list(weights.values())).sum()))
        return torch.stack(terms).mean()

    def take_up_normalisations(self, model: Classifier) -> None:
        """Normalisations of FedBN: those of the previous round, or new ones."""
        before = dict((self.previous or model).named_modules())
        for name, module in model.named_modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                if self.previous is None:
                    module.reset_parameters()
                else:
                    module.load_state_dict(before[name].state_dict())

    def move_control(
        self,
        sent: Classifier,
        model: Classifier,
        own: ModelState,
        control: ModelState,
        rate: float,
    ) -> None:
        """SCAFFOLD, option II: c_i⁺ = c_i − c + (x − y_i)/(Kη); c_i where there was no step."""
        x, y = dict(sent.named_parameters()), dict(model.named_parameters())
        after = {
            name: c - control[name] + (x[name] - y[name]).detach() / (self.steps * rate)
            if self.steps
            else c
            for name, c in own.items()
        }
        self.change = {name: after[name] - own[name] for name in own}
        self.own = after


def climb(model: Classifier, radius: float) -> None:
    """SAM's ascent to w + ρ g/‖g‖, the norm taken over the whole model."""
    pairs = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    norm = torch.linalg.norm(torch.cat([gradient.flatten() for _, gradient in pairs]))
    with torch.no_grad():
        for p, gradient in pairs:
            p.add_(radius * gradient / norm)


# --- the comparison -----------------------------------------------------------------------------


def control_of(layout: FlatLayout, number: int) -> tuple[Tensor, ModelState]:
    """A control variate of the server, flat and by parameter."""
    flat = torch.zeros(layout.size)
    for name, view in layout.views(flat).items():
        generator = Randomness(number).generator(f"control of {name}")
        view.copy_(0.1 * torch.randn(view.shape, generator=generator))
    return flat, layout.views(flat)


def trainer_of(config: ClassifyConfig) -> LocalTrainer:
    make = classifier_maker(config, SHAPE, CLASSES)
    sharing = CLASSIFIERS[config.method].sharing(make, CPU)
    term = decorrelation_term(config.decorrelation, make().features)
    return LocalTrainer(config, make, sharing, term, CLASSES)


def trained(
    trainer: LocalTrainer, message: Broadcast, client: Client, randomness: Randomness
) -> LocalUpdate:
    (update,) = train_side_by_side([trainer.train(message, client, randomness)], CPU)
    return update


def assert_same(found: ModelState, expected: ModelState) -> None:
    assert found.keys() == expected.keys()
    for name, entry in expected.items():
        torch.testing.assert_close(found[name], entry, atol=1e-7, rtol=0, msg=name)


def compare(*settings: str) -> None:
    """Rounds from random models, in the plain loop and by one trainer for all clients."""
    config = small_config("training.local_epochs=2", *settings)
    make = classifier_maker(config, SHAPE, CLASSES)
    layout = FlatLayout(make().named_parameters())
    trainer, clients = trainer_of(config), labelled_clients(*SIZES)
    plain = [PlainClient(client) for client in labelled_clients(*SIZES)]
    for number in range(ROUNDS):
        sent = new_model(config, number)
        flat, control = control_of(layout, number)
        expected = [one.train(config, number, sent, control).state_dict() for one in plain]
        shared = trainer.sharing.shared(sent.state_dict())
        controlled = config.method == "scaffold"
        message = ControlledBroadcast(shared, flat) if controlled else Broadcast(shared)
        for client, one in zip(clients, plain, strict=True):
            update = trained(trainer, message, client, Randomness(config.seed, number))
            assert (update.samples, update.steps) == (len(client), one.steps)
            assert update.loss == (None if one.loss is None else pytest.approx(one.loss))
            found = trainer.sharing.personal(update.model, client.memory)
            assert_same(found, expected[client.id])
            assert update.model.keys() == message.model.keys()
            assert isinstance(update, ControlledUpdate) == controlled
            if isinstance(update, ControlledUpdate):
                assert_same(layout.views(update.control_change), one.change)


@pytest.mark.parametrize("decorrelation", ["none", "feddecorr"])
@pytest.mark.parametrize("method", LOCAL_METHODS)
def test_training_is_the_methods_plain_loop(method: str, decorrelation: str) -> None:
    compare(f"method={method}", f"decorrelation.kind={decorrelation}")


def test_the_logged_term_is_the_mean_of_each_epoch() -> None:
    config = small_config("training.local_epochs=2", "decorrelation.log_epochs=true")
    sent = new_model(config, 0)
    plain = [PlainClient(client) for client in labelled_clients(*SIZES)]
    trainer, message = trainer_of(config), Broadcast(sent.state_dict())
    for client, one in zip(labelled_clients(*SIZES), plain, strict=True):
        update = trained(trainer, message, client, Randomness(config.seed, 0))
        one.train(config, 0, sent, {})
        if not one.terms:
            assert update.terms is None
            continue
        assert update.terms is not None
        by_epoch = torch.tensor(one.terms).view(2, -1).mean(dim=1)
        torch.testing.assert_close(update.terms, by_epoch, atol=1e-7, rtol=0)


RECORDED = pytest.mark.nightly("supervised", "ccfcpp/models", "tests/support/recording.py")
"""Recording takes seconds a method: of two in the suite, which keep the most between steps."""


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=[] if m in ("scaffold", "moon") else RECORDED) for m in LOCAL_METHODS],
)
def test_captured_steps_give_the_same_bits(method: str, recorder: Recorder) -> None:
    """Of several clients and rounds, so that recorded steps meet tensors of other clients."""
    config = small_config("training.local_epochs=8", "training.batch_size=4", f"method={method}")
    clients, others = labelled_clients(*SIZES), labelled_clients(*SIZES)
    captured = trainer_of(config)
    for number in range(ROUNDS):
        sent = new_model(config, number)
        shared = captured.sharing.shared(sent.state_dict())
        message = Broadcast(shared)
        if method == "scaffold":
            layout = FlatLayout(sent.named_parameters())
            message = ControlledBroadcast(shared, control_of(layout, number)[0])
        for client, other in zip(clients, others, strict=True):
            plain = trainer_of(config)
            plain.step._record = None
            now = Randomness(config.seed, number)
            found, expected = (
                trained(trainer, message, client, now)
                for trainer, client in ((captured, client), (plain, other))
            )
            assert (found.loss, found.steps) == (expected.loss, expected.steps)
            for name, entry in expected.model.items():
                assert torch.equal(found.model[name], entry), name
    assert recorder.records == 1
    assert recorder.replays > 20


def test_moon_with_a_projection_head_is_the_plain_loop() -> None:
    compare("method=moon", "moon.projection=[7, 5]")


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_training_without_momentum_is_the_methods_plain_loop(method: str) -> None:
    """For SCAFFOLD this is the step of its paper, with the correction in the gradient."""
    compare(f"method={method}", "training.momentum=0")


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "moon", "scaffold", "fedsam"])
def test_training_without_batch_normalisation_is_the_methods_plain_loop(method: str) -> None:
    compare(f"method={method}", "model.batch_norm=false")


def test_fedbn_sends_no_normalisation_and_takes_the_clients_own_up_again() -> None:
    config = small_config("method=fedbn")
    make = classifier_maker(config, SHAPE, CLASSES)
    trainer = trainer_of(config)
    (client,) = labelled_clients(12)
    norms = normalisations(make())
    message = Broadcast(trainer.sharing.shared(new_model(config, 0).state_dict()))
    update = trained(trainer, message, client, Randomness(0, 0))
    assert set(make().state_dict()) - set(update.model) == norms
    after = trainer.network.state()
    started = trainer.method.start(message, client)
    for name, entry in started.items():
        assert torch.equal(entry, after[name] if name in norms else message.model[name])
