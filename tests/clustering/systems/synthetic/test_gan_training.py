"""GANs of clients against an obvious loop, side by side, and by their images."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.clustering.systems.synthetic.config import GANConfig
from ccfcpp.clustering.systems.synthetic.gan_training import (
    GANLosses,
    GANTrainer,
    gan_training_bytes,
)
from ccfcpp.clustering.systems.synthetic.networks import Discriminator, Generator
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.models.state import build
from ccfcpp.models.steps import train_side_by_side
from tests.support.clustering import clients_of_sizes
from tests.support.federation import CPU
from tests.support.recording import Recorder

SHAPE = (1, 8, 8)
CODES = 3
SMALL = GANConfig(
    noise=5,
    generator_width=16,
    generator_channels=(6, 4),
    discriminator_channels=(4, 6),
    discriminator_width=8,
    epochs=2,
    batch_size=8,
    rate_decay=0.5,
)
RANDOMNESS = Randomness(3)


@dataclass
class Trained:
    """Result of a client's training."""

    losses: GANLosses
    images: Tensor


Result = Trained | RefusedUpdateError


def trainer(config: GANConfig = SMALL, device: torch.device = CPU) -> GANTrainer:
    return GANTrainer(config, SHAPE, CODES, device)


def epoch_of(
    gans: GANTrainer, client: Client, source: Randomness
) -> GANLosses | RefusedUpdateError:
    (found,) = train_side_by_side([gans.train_epoch(client, source)], gans.device)
    return found


def train(gans: GANTrainer, client: Client, source: Randomness = RANDOMNESS) -> Result:
    """Train all epochs of a client without a memory, and draw images after the last one."""
    own = replace(client, memory={}, images=client.images.to(gans.device))
    losses: GANLosses | RefusedUpdateError = GANLosses(0)
    for epoch in range(gans.config.epochs):
        losses = epoch_of(gans, own, source.at_round(epoch))
    images = gans.draw(own, source.at_round(gans.config.epochs - 1).of_client(own.id))
    if isinstance(losses, RefusedUpdateError):
        return losses
    return images if isinstance(images, RefusedUpdateError) else Trained(losses, images)


def images_of(result: Result) -> Tensor:
    assert isinstance(result, Trained)
    return result.images


def plain_training(client: Client, config: GANConfig) -> tuple[Generator, float, float]:
    """The published loop, with the trainer's own batches, noise, codes and initial weights."""
    own = RANDOMNESS.of_client(client.id)
    generator = build(lambda: Generator(SHAPE, CODES, config), own.generator("generator"))
    discriminator = build(lambda: Discriminator(SHAPE, config), own.generator("discriminator"))
    entropy = nn.BCEWithLogitsLoss()
    for epoch in range(config.epochs):
        own = own.at_round(epoch)
        decay = config.rate_decay**epoch
        of_generator, of_discriminator = (
            torch.optim.Adam(network.parameters(), lr=rate * decay, betas=(0.5, 0.999))
            for network, rate in (
                (generator, config.generator_rate),
                (discriminator, config.discriminator_rate),
            )
        )
        draws = own.generator("noise")
        noise = torch.randn(len(client), config.noise, generator=draws)
        codes = F.one_hot(torch.randint(CODES, (len(client),), generator=draws), CODES)
        inputs = torch.cat([noise, codes], dim=1)
        losses = []
        order = torch.randperm(len(client), generator=own.generator("batches"))
        for index in torch.split(order, config.batch_size):
            real = client.images[index] / 255
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = generator(inputs[index])
            of_discriminator.zero_grad()
            loss_d = entropy(discriminator(real), ones)
            loss_d = loss_d + entropy(discriminator(fake.detach()), zeros)
            torch.autograd.backward(loss_d)
            of_discriminator.step()
            of_generator.zero_grad()
            loss_g = entropy(discriminator(fake), ones)
            torch.autograd.backward(loss_g)
            of_generator.step()
            losses.append((loss_g.item(), loss_d.item()))
    mean_g, mean_d = torch.tensor(losses).mean(dim=0).tolist()
    return generator, mean_g, mean_d


@pytest.mark.usefixtures("double_precision")
def test_training_is_the_published_loop(device: torch.device) -> None:
    """A last batch of 3, and images of every code in turn."""
    (client,) = clients_of_sizes(27)
    generator, loss_g, loss_d = plain_training(client, SMALL)
    found = train(trainer(device=device), client)
    assert isinstance(found, Trained)
    assert (found.losses.generator, found.losses.discriminator) == pytest.approx((loss_g, loss_d))
    noise = torch.randn(
        27, SMALL.noise, generator=RANDOMNESS.at_round(1).of_client(0).generator("images")
    )
    codes = F.one_hot(torch.arange(27) % CODES, CODES)
    with torch.no_grad():
        images = generator.eval()(torch.cat([noise, codes], dim=1))
    assert found.images.dtype == torch.uint8
    assert torch.equal(found.images.cpu(), (images * 255).round().to(torch.uint8))


def test_one_trainer_serves_clients_in_any_order() -> None:
    """Sizes with last batches of 0, 1, 2 and 5, equal sizes, and a client that cannot train."""
    clients = clients_of_sizes(16, 10, 21, 17, 10, 1)
    expected = {client.id: train(trainer(), client) for client in clients}
    gans = trainer()
    for client in (*clients, *clients[::-1]):
        found, other = train(gans, client), expected[client.id]
        assert type(found) is type(other)
        if isinstance(found, Trained) and isinstance(other, Trained):
            assert torch.equal(found.images, other.images)
            assert found.losses == other.losses


def test_captured_steps_give_the_same_bits(recorder: Recorder) -> None:
    # At a rate that stays: on a processor a recording holds it.
    config = SMALL.model_copy(update={"rate_decay": 1.0, "epochs": 3})
    captured = trainer(config)
    for client in clients_of_sizes(27, 16, 11):
        plain = trainer(config)
        plain._step._record = None
        found, expected = train(captured, client), train(plain, client)
        assert isinstance(found, Trained)
        assert isinstance(expected, Trained)
        assert found.losses == expected.losses
        assert torch.equal(found.images, expected.images)
    assert recorder.records == 1
    assert recorder.replays == 3 * (3 + 2 + 1) - 3


def test_random_numbers_are_the_clients_own() -> None:
    (client,) = clients_of_sizes(12)
    gans = trainer()
    draws = [
        images_of(train(gans, client, source))
        for client, source in (
            (client, RANDOMNESS),
            (client, RANDOMNESS),
            (replace(client, id=1), RANDOMNESS),
            (client, replace(RANDOMNESS, seed=4)),
        )
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[3])


def test_a_client_of_one_image_has_no_gan() -> None:
    results = [train(trainer(), client) for client in clients_of_sizes(9, 2, 1)]
    assert [images_of(result).shape for result in results[:2]] == [(9, *SHAPE), (2, *SHAPE)]
    assert isinstance(results[2], RefusedUpdateError)
    assert "holds one image" in str(results[2])


def test_networks_stay_with_their_client_from_epoch_to_epoch() -> None:
    """A new trainer, as after an interruption, continues where the first one stopped."""
    (client,) = clients_of_sizes(12)
    expected = train(trainer(), client)
    epoch_of(trainer(), client, RANDOMNESS.at_round(0))
    before = dict(client.memory)
    later = trainer()
    losses = epoch_of(later, client, RANDOMNESS.at_round(1))
    assert isinstance(expected, Trained)
    assert losses == expected.losses
    images = later.draw(client, RANDOMNESS.at_round(1).of_client(client.id))
    assert isinstance(images, Tensor)
    assert torch.equal(images, expected.images)
    assert {name.partition("/")[0] for name in before} == {"generator", "discriminator"}


def test_a_gan_that_came_through_no_epoch_has_no_images() -> None:
    (client,) = clients_of_sizes(12)
    refused = trainer().draw(client, RANDOMNESS)
    assert isinstance(refused, RefusedUpdateError)
    assert "has not been trained for an epoch" in str(refused)


def test_the_configuration_can_say_how_many_images_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Images need several forward passes; the size of a pass does not change them."""
    config = SMALL.model_copy(update={"images": 20, "epochs": 1})
    (client,) = clients_of_sizes(9)
    whole = train(trainer(config), client)
    monkeypatch.setattr(
        "ccfcpp.clustering.systems.synthetic.gan_training.forward_batch", lambda size: 8
    )
    parts = train(trainer(config), client)
    assert images_of(whole).shape == (20, *SHAPE)
    assert (images_of(whole).int() - images_of(parts).int()).abs().max() <= 1


def test_a_gan_that_diverges_is_refused() -> None:
    config = SMALL.model_copy(update={"generator_rate": 1e38})
    (client,) = clients_of_sizes(20)
    result = train(trainer(config), client)
    assert isinstance(result, RefusedUpdateError)
    assert "its GAN has diverged" in str(result)


def test_a_gan_that_diverges_is_no_concern_of_the_next() -> None:
    first, second = clients_of_sizes(20, 11)
    expected = epoch_of(trainer(), replace(second, memory={}), RANDOMNESS.at_round(0))
    gans = trainer()
    networks = build(lambda: Generator(SHAPE, CODES, SMALL), Randomness(0).generator("x"))
    broken = {
        f"generator/{name}": entry * torch.nan if entry.is_floating_point() else entry
        for name, entry in networks.state_dict().items()
    }
    first.memory = broken
    assert isinstance(epoch_of(gans, first, RANDOMNESS.at_round(0)), RefusedUpdateError)
    assert first.memory is broken  # it keeps the networks of the epoch before
    assert epoch_of(gans, second, RANDOMNESS.at_round(0)) == expected


def nearest_distance(images: Tensor, real: Tensor) -> float:
    """Mean distance of images from the most similar real image, in grey levels per pixel."""
    apart = torch.cdist(images.flatten(1).double(), real.flatten(1).double(), p=1)
    return apart.min(dim=1).values.mean().item() / images[0].numel()


@pytest.mark.nightly("ccfcpp/models", "ccfcpp/clustering/systems/synthetic")
def test_gans_learn_what_their_clients_hold() -> None:
    """Images with a bright upper or lower half; eight GANs, since a single one may fail."""
    draws = Randomness(0).generator("images")
    upper = (torch.arange(8) < 4).view(1, 1, 8, 1).expand(60, 1, 8, 8)
    bright = torch.cat([upper, ~upper])
    real = (torch.where(bright, 220, 30) + torch.randint(20, bright.shape, generator=draws)).byte()

    def distance(epochs: int) -> float:
        config = GANConfig(
            noise=2,
            generator_width=64,
            generator_channels=(16,),
            discriminator_channels=(16,),
            discriminator_width=32,
            epochs=epochs,
            batch_size=40,
            generator_rate=1e-2,
            discriminator_rate=1e-2,
            rate_decay=1.0,
        )
        clients = [Client(number, "", real) for number in range(8)]
        gans = trainer(config)
        results = [train(gans, client) for client in clients]
        return sum(nearest_distance(images_of(result), real) for result in results) / len(results)

    assert distance(epochs=60) < distance(epochs=1) - 5


def test_training_bytes_grow_with_the_batch_up_to_its_size() -> None:
    def needed(samples: int) -> int:
        return gan_training_bytes(SMALL, SHAPE, CODES, samples)

    networks = (Generator(SHAPE, CODES, SMALL), Discriminator(SHAPE, SMALL))
    weights = 4 * sum(p.numel() for network in networks for p in network.parameters())
    assert needed(2) > 6 * weights
    assert needed(4) - needed(2) == needed(6) - needed(4) > 0
    assert needed(8) == needed(100)
