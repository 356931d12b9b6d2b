"""Training of the clients' GANs (generative adversarial networks), and their images.

Source: SDA-FC's public code, whose choices for MNIST are the defaults of ``GANConfig``: standard
normal noise, and images drawn in evaluation mode. Three choices differ: initial weights are
PyTorch's (there normal with a standard deviation of 0.02), the generator's step has the noise of
the discriminator's (there a new draw), and codes are random (there balanced in each batch).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.clustering.systems.synthetic.config import GANConfig
from ccfcpp.clustering.systems.synthetic.networks import Discriminator, Generator
from ccfcpp.core.profiling import section
from ccfcpp.core.progress import report_images
from ccfcpp.core.randomness import SETUP, Randomness
from ccfcpp.data.images import forward_batch, to_float
from ccfcpp.engine.client import Client, select_memory
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.engine.payload import find_non_finite
from ccfcpp.models.network import FlatNetwork, training_bytes
from ccfcpp.models.optimizers import FlatAdam
from ccfcpp.models.state import build
from ccfcpp.models.steps import Batches, Inputs, MeanLoss, Step, Training, make_recorder

_NAMES = "generator", "discriminator"
_BETAS = (0.5, 0.999)
"""Adam's β₁ and β₂, as in SDA-FC's public code."""

_DIVERGED = (
    "its GAN has diverged, losses or images are not finite: lower gan.generator_rate or "
    "gan.discriminator_rate"
)


@dataclass(frozen=True)
class GANLosses:
    """A client's number of images, and its GAN's mean losses in an epoch; None if not trained."""

    samples: int
    generator: float | None = None
    discriminator: float | None = None


def discriminator_loss(real: Tensor, generated: Tensor) -> Tensor:
    """Return the binary cross-entropy of real images with label 1 plus generated ones with 0.

    Args:
        real: The discriminator's logits of real images, of shape (batch,).
        generated: Its logits of generated images, of the same shape.
    """
    return -F.logsigmoid(real).mean() - F.logsigmoid(-generated).mean()


Maker = Callable[[], nn.Module]


def network_makers(
    config: GANConfig, image_shape: Sequence[int], codes: int
) -> tuple[Maker, Maker]:
    """Return two functions that build a generator and a discriminator.

    ``codes`` is the length of the generator's one-hot code. The functions raise a ``UsageError`` if
    images of this shape do not fit the networks.
    """
    return partial(Generator, image_shape, codes, config), partial(
        Discriminator, image_shape, config
    )


def gan_training_bytes(
    config: GANConfig, image_shape: Sequence[int], codes: int, samples: int
) -> int:
    """Return the bytes of memory for training one client's GAN on ``samples`` images.

    They are those of both networks and of their activations.
    """
    batch = min(config.batch_size, samples)
    generator, discriminator = network_makers(config, image_shape, codes)
    return training_bytes(generator, (config.noise + codes,), batch, views=1) + training_bytes(
        discriminator, image_shape, batch, views=2
    )


class GANTrainer:
    """A generator and a discriminator, which are trained for one client after another.

    A client's networks are in its local state (``memory``). As in SDA-FC's public code, optimizers
    start afresh in each epoch.

    Raises:
        UsageError: The networks do not fit the images.
    """

    def __init__(
        self,
        config: GANConfig,
        image_shape: Sequence[int],
        codes: int,
        device: torch.device,
        precision: str = "float32",
    ) -> None:
        self.config = config
        self.codes = codes
        self.device = device
        self._forward_batch = forward_batch(image_shape[1] * image_shape[2])
        self._makers = network_makers(config, image_shape, codes)
        self._generator, self._discriminator = self._networks = [
            FlatNetwork(make, device, precision=precision) for make in self._makers
        ]
        self._of_generator, self._of_discriminator = self._optimizers = [
            FlatAdam(network, _BETAS) for network in self._networks
        ]
        self._means = [MeanLoss(device), MeanLoss(device)]
        self._inputs = Inputs(device, make_recorder(device))
        self._batches = Batches(self._inputs, config.batch_size)
        self._step = Step(self._descend, config.batch_size, self._inputs)

    def train_epoch(
        self, client: Client, randomness: Randomness
    ) -> Training[GANLosses | RefusedUpdateError]:
        """Train a client's GAN for an epoch, from its stored or from new weights.

        This is a generator, each step of which is a training step.

        Args:
            client: The client, whose local state is replaced.
            randomness: Source of random numbers; its round is the number of the epoch.

        Returns:
            The losses, or a refusal if the GAN has diverged.
        """
        self._load(client, randomness)
        config, own = self.config, randomness.of_client(client.id)
        decay = config.rate_decay**randomness.round
        rates = config.generator_rate, config.discriminator_rate
        for optimizer, mean, rate in zip(self._optimizers, self._means, rates, strict=True):
            optimizer.begin(rate * decay)
            mean.begin()
        self._inputs.put("images", client.images)
        self._inputs.put("noise", self._random_inputs(len(client), own.generator("noise")))
        lengths = self._batches.shuffle(len(client), own.generator("batches"))
        for samples in lengths:
            self._step(samples)
            report_images(samples, 1)
            yield
        generating, discriminating = (mean.mean(len(lengths)) for mean in self._means)
        return self._store(client, GANLosses(len(client), generating, discriminating))

    def _load(self, client: Client, randomness: Randomness) -> None:
        """Load a client's stored networks, or its initial ones if there are none."""
        own = randomness.at_round(SETUP).of_client(client.id)
        for name, make, network in zip(_NAMES, self._makers, self._networks, strict=True):
            stored = select_memory(client.memory, name)
            network.load(stored or build(make, own.generator(name)).state_dict())
            network.train()

    def _store(self, client: Client, losses: GANLosses) -> GANLosses | RefusedUpdateError:
        """Store the trained networks in the client's local state; refuse if they have diverged."""
        if losses.generator is None or losses.discriminator is None:
            return losses
        networks = {
            f"{name}/{entry}": tensor
            for name, network in zip(_NAMES, self._networks, strict=True)
            for entry, tensor in network.state().items()
        }
        if find_non_finite(networks) or not all(
            map(math.isfinite, (losses.generator, losses.discriminator))
        ):
            return RefusedUpdateError(f"{_DIVERGED}; it keeps the networks of the previous epoch")
        client.memory = networks
        return losses

    def _descend(self, samples: int) -> None:
        """Train the discriminator for a step on ``samples`` images, then the generator."""
        index = self._batches.next(samples)
        real = to_float(self._inputs["images"][index])
        with section("GAN: generator"):
            (generated,) = self._generator(self._inputs["noise"][index])
        with section("GAN: discriminator"):
            # Real and generated images are separate batches for batch normalisation.
            (of_real,), (of_generated,) = map(self._discriminator, (real, generated.detach()))
            discriminating = discriminator_loss(of_real[:, 0], of_generated[:, 0])
            self._discriminator.backward(discriminating)
        with section("GAN: optimizers"):
            self._of_discriminator.step()
        with section("GAN: generator"):
            (logits,) = self._discriminator(generated)
            # Binary cross-entropy with 1 (Goodfellow et al. 2014, Section 3).
            generating = -F.logsigmoid(logits[:, 0]).mean()
            self._generator.backward(generating)
        with section("GAN: optimizers"):
            self._of_generator.step()
        for mean, loss in zip(self._means, (generating, discriminating), strict=True):
            mean.add(loss)

    def _random_inputs(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw noise and codes, of shape (count, noise + codes), on the CPU."""
        noise = torch.randn(count, self.config.noise, generator=generator)
        return self._with_codes(noise, torch.randint(self.codes, (count,), generator=generator))

    def _with_codes(self, noise: Tensor, codes: Tensor) -> Tensor:
        return torch.cat([noise, F.one_hot(codes, self.codes).to(noise.dtype)], dim=1)

    @torch.no_grad()
    def draw(self, client: Client, randomness: Randomness) -> Tensor | RefusedUpdateError:
        """Draw synthetic images with a client's trained generator; ``randomness`` is the client's.

        Returns:
            uint8 of shape (images, channels, height, width): ``gan.images`` of them, or as many as
            the client has images; image i has the code i mod the number of codes. A refusal for a
            client that has a single image, no trained GAN, or one that has diverged.
        """
        if len(client) < 2:
            return RefusedUpdateError("it holds one image, and a GAN needs at least two")
        stored = select_memory(client.memory, "generator")
        if not stored:
            return RefusedUpdateError("its GAN has not been trained for an epoch")
        self._generator.load(stored)
        self._generator.train(False)
        count, generator = self.config.images or len(client), randomness.generator("images")
        noise = torch.randn(count, self.config.noise, generator=generator)
        inputs = self._with_codes(noise, torch.arange(count) % self.codes)
        drawn = []
        for some in torch.split(inputs, self._forward_batch):
            (images,) = self._generator(some.to(self.device))
            if not images.isfinite().all():
                return RefusedUpdateError(_DIVERGED)
            drawn.append((images * 255).round().to(torch.uint8))
        return torch.cat(drawn)
