"""Steps of each kind of local training do nothing that a CUDA graph cannot do."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ccfcpp.clustering.systems.ccfc.local_training import ContrastiveTrainer
from ccfcpp.clustering.systems.synthetic.config import GANConfig
from ccfcpp.clustering.systems.synthetic.gan_training import GANTrainer
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.models.network import FlatLayout
from ccfcpp.models.state import build
from supervised.classifiers import CLASSIFIERS
from supervised.local_training import LocalTrainer
from supervised.losses import decorrelation_term
from supervised.messages import Broadcast
from supervised.methods.scaffold import ControlledBroadcast
from supervised.setup import classifier_maker
from tests.support.classification import CLASSES, SHAPE, labelled_clients, small_config
from tests.support.clustering import clients_of_sizes, small_algorithm
from tests.support.clustering import small_config as small_clustering
from tests.support.recording import META, CapturedError, watch

pytestmark = pytest.mark.usefixtures("watched")
SOURCE = Randomness(0, 0)


def there(client: Client) -> Client:
    labels = None if client.labels is None else client.labels.to(META)
    return replace(client, images=client.images.to(META), labels=labels)


def assert_captured(steps: Iterable[None]) -> None:
    with pytest.raises(CapturedError):
        for _ in steps:
            pass


@pytest.mark.parametrize(
    "setting", ["seed=0", "decorrelation.kind=feddecorr", "training.momentum=0"]
)
@pytest.mark.parametrize("method", CLASSIFIERS)
def test_classification(method: str, setting: str) -> None:
    config = small_config("training.local_epochs=9", f"method={method}", setting)
    make = classifier_maker(config, SHAPE, CLASSES)
    sharing = CLASSIFIERS[method].sharing(make, META)
    term = decorrelation_term(config.decorrelation, make().features)
    trainer = LocalTrainer(config, make, sharing, term, CLASSES)
    sent = build(make, SOURCE.generator("model"))
    message = Broadcast(sharing.shared(sent.state_dict()))
    if method == "scaffold":
        control = torch.zeros(FlatLayout(sent.named_parameters()).size)
        message = ControlledBroadcast(message.model, control)
    (client,) = labelled_clients(24)
    assert_captured(trainer.train(message, there(client), SOURCE))


@pytest.mark.parametrize("phase", ["pretrain", "contrast"])
@pytest.mark.parametrize("setting", ["loss.eta=0.01", "loss.lam=0", "loss.scale=feddecorr"])
def test_contrast(phase: str, setting: str) -> None:
    config = small_clustering("training.local_epochs=9", "training.batch_size=8", setting)
    algorithm = small_algorithm(config, device=META)
    trainer = ContrastiveTrainer(
        algorithm.problem, algorithm.make_model, algorithm.global_model, algorithm.rule
    )
    (client,) = clients_of_sizes(40)
    state = replace(algorithm.initial_state(SOURCE), centroids=torch.zeros(3, 12, device=META))
    train = trainer.pretrain if phase == "pretrain" else trainer.contrast
    assert_captured(train(state, there(client), SOURCE, False))


def test_gans() -> None:
    (client,) = clients_of_sizes(40)
    gans = GANTrainer(GANConfig(batch_size=8, epochs=1), (1, 8, 8), 3, META)
    assert_captured(gans.train_epoch(there(client), SOURCE))


def copies(a: Tensor) -> None:
    torch.eye(2).to(a)


def makes(a: Tensor) -> None:
    torch.tensor([1.0], device=a.device)


def makes_alike(a: Tensor) -> None:
    a.new_tensor([1.0])


def looks(a: Tensor) -> None:
    float(a.sum())


def draws(a: Tensor) -> None:
    torch.rand_like(a)


def joins(a: Tensor) -> None:
    a * torch.tensor(2.0)


def doubles(a: Tensor) -> None:
    a.mul_(2)


@pytest.mark.parametrize("step", [copies, makes, makes_alike, looks, draws, joins])
def test_what_a_graph_cannot_do_is_seen(step: Callable[[Tensor], None]) -> None:
    with pytest.raises(AssertionError):
        watch(lambda: step(torch.zeros(2, 2, device=META)))
    with pytest.raises(CapturedError):
        watch(lambda: doubles(torch.zeros(2, device=META)))
