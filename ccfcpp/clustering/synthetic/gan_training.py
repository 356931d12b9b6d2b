"""Training of the clients' GANs, a cohort side by side, and the synthetic images that they draw.

Source: SDA-FC's public code, whose choices for MNIST are the defaults of ``GANConfig``: standard
normal noise, and images drawn in evaluation mode. Three choices differ: initial weights are
PyTorch's (there normal with a deviation of 0.02), both steps of a batch share one draw of noise
(there the generator's step has its own), and codes are random (there balanced in each batch).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.clustering.synthetic.config import GANConfig
from ccfcpp.clustering.synthetic.networks import Discriminator, Generator
from ccfcpp.core.pace import tell_images
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import SETUP, Randomness
from ccfcpp.data.batches import CohortBatch, MeanLosses, cohort_batches
from ccfcpp.data.images import forward_batch, to_float
from ccfcpp.engine.client import Client, memory_of
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.engine.payload import not_finite
from ccfcpp.models.batch_statistics import batch_mean
from ccfcpp.models.stack.optimizers import StackedAdam
from ccfcpp.models.stack.stacked import ModelStack, training_bytes
from ccfcpp.models.state import build

_BETAS = (0.5, 0.999)
"""Adam's β₁ and β₂ in the published system."""

_DIVERGED = (
    "its GAN has diverged, losses or images are not finite: lower gan.generator_rate or "
    "gan.discriminator_rate"
)


@dataclass(frozen=True)
class GANLosses:
    """Losses of a client's epoch."""

    samples: int
    generator: float | None = None
    discriminator: float | None = None


def discriminator_losses(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Binary cross-entropy of real images with 1, plus that of generated ones with 0.

    ``logits`` have the shape (clients, 2, batch): of real images, then of generated ones. The
    result has the shape (clients,).
    """
    real, generated = logits[:, 0], logits[:, 1]
    return batch_mean(-F.logsigmoid(real), mask) + batch_mean(-F.logsigmoid(-generated), mask)


Maker = Callable[[], nn.Module]


def network_makers(
    config: GANConfig, image_shape: Sequence[int], codes: int
) -> tuple[Maker, Maker]:
    """What builds a generator and a discriminator.

    Raises:
        UsageError: When they are called, where the images do not fit the networks.
    """
    return partial(Generator, image_shape, codes, config), partial(
        Discriminator, image_shape, config
    )


def gan_training_bytes(
    config: GANConfig, image_shape: Sequence[int], codes: int, samples: int
) -> int:
    """Bytes for the training of one more client of a cohort, which holds ``samples`` images.

    They are those of both networks and of their activations, which are held at the same time.
    """
    batch = min(config.batch_size, samples)
    generator, discriminator = network_makers(config, image_shape, codes)
    return training_bytes(generator, (config.noise + codes,), batch, views=1) + training_bytes(
        discriminator, image_shape, batch, views=2
    )


class GANTrainer:
    """Trains a stack of generators and one of discriminators.

    One trainer serves all clients of a process, cohort after cohort, and keeps nothing of a cohort.
    Each client remembers its networks from epoch to epoch, but not the optimizers' moments, as in
    the published system.

    Raises:
        UsageError: The networks do not fit the images.
    """

    def __init__(
        self,
        config: GANConfig,
        image_shape: Sequence[int],
        codes: int,
        cohort: int,
        device: torch.device,
        precision: str = "float32",
    ) -> None:
        self.config = config
        self.codes = codes
        self.cohort = cohort
        self.device = device
        self._forward_batch = forward_batch(image_shape[1] * image_shape[2])
        makers = network_makers(config, image_shape, codes)
        self._generators, self._discriminators = (
            ModelStack(make, cohort, device, precision=precision) for make in makers
        )
        self._networks = {
            "generator": (makers[0], self._generators),
            "discriminator": (makers[1], self._discriminators),
        }

    def train_epoch(
        self, clients: Sequence[Client], randomness: Randomness
    ) -> list[GANLosses | RefusedUpdateError]:
        """Train each client's GAN for an epoch, from its memory or from new weights.

        Args:
            clients: The cohort, in descending order of size; their memories are replaced.
            randomness: The source, set to the round, which is the number of the epoch.

        Returns:
            The losses of each client, or a refusal for a client whose GAN has diverged. They do not
            depend, up to rounding, on the other clients of the cohort.
        """
        self._load(clients, randomness)
        generators, discriminators = self._descend(clients, randomness)
        return [
            self._kept(index, client, GANLosses(len(client), *own))
            for index, (client, *own) in enumerate(
                zip(clients, generators, discriminators, strict=True)
            )
        ]

    def draw(
        self, clients: Sequence[Client], randomness: Randomness
    ) -> list[Tensor | RefusedUpdateError]:
        """Draw synthetic images by the GANs that clients remember.

        Returns:
            uint8 of shape (images, channels, height, width) for each client: ``gan.images`` of
            them, or as many as the client holds; image i has the code i mod the number of codes. A
            refusal for a client that holds a single image, or whose GAN has diverged.
        """
        return [self._drawn(client, randomness.of_client(client.id)) for client in clients]

    def _load(self, clients: Sequence[Client], randomness: Randomness) -> None:
        """Load the networks that clients remember, or new ones that do not depend on the round."""
        for index, client in enumerate(clients):
            own = randomness.at_round(SETUP).of_client(client.id)
            for name, (make, stack) in self._networks.items():
                remembered = memory_of(client.memory, name)
                stack.load(index, remembered or build(make, own.generator(name)).state_dict())
        self._generators.train()
        self._discriminators.train()

    def _kept(
        self, index: int, client: Client, losses: GANLosses
    ) -> GANLosses | RefusedUpdateError:
        """Store the trained networks in the client's memory, unless they have diverged."""
        if losses.generator is None or losses.discriminator is None:
            return losses
        networks = {
            f"{name}/{entry}": tensor
            for name, (_, stack) in self._networks.items()
            for entry, tensor in stack.state(index).items()
        }
        if not_finite(networks) or not all(
            map(math.isfinite, (losses.generator, losses.discriminator))
        ):
            return RefusedUpdateError(f"{_DIVERGED}; it keeps the networks of the previous epoch")
        client.memory = networks
        return losses

    def _descend(
        self, clients: Sequence[Client], randomness: Randomness
    ) -> tuple[list[float | None], list[float | None]]:
        """Train the loaded networks for an epoch."""
        images = torch.cat([client.images for client in clients])
        config, count = self.config, len(clients)
        of_clients = [randomness.of_client(client.id) for client in clients]
        inputs = torch.cat(
            [
                self._random_inputs(len(client), own.generator("noise"))
                for client, own in zip(clients, of_clients, strict=True)
            ]
        ).to(self.device)
        decay = config.rate_decay**randomness.round
        optimizers = [
            StackedAdam(stack.parameters[:count], stack.gradients[:count], rate * decay, _BETAS)
            for stack, rate in (
                (self._generators, config.generator_rate),
                (self._discriminators, config.discriminator_rate),
            )
        ]
        generators, discriminators = (MeanLosses(count, self.device) for _ in range(2))
        batches = cohort_batches(
            [len(client) for client in clients],
            config.batch_size,
            [own.generator("batches") for own in of_clients],
            self.device,
        )
        for batch in batches:
            generating, discriminating = self._step(batch, images, inputs, *optimizers)
            generators.add(generating)
            discriminators.add(discriminating)
            tell_images(batch.index.numel(), 1)
        return generators.means(), discriminators.means()

    def _step(
        self,
        batch: CohortBatch,
        images: Tensor,
        inputs: Tensor,
        of_generators: StackedAdam,
        of_discriminators: StackedAdam,
    ) -> tuple[Tensor, Tensor]:
        """Train the discriminators for a step, then the generators against them.

        A real image and a generator's input, of shape (noise + codes,), have the same index.
        """
        count, shown = len(batch), batch.index.flatten()
        self._generators.activate(count)
        self._discriminators.activate(count)
        with section("GAN: generator"):
            (generated,) = self._generators(inputs[shown], mask=batch.mask)
        with section("GAN: discriminator"):
            real = to_float(images[shown]).view_as(generated)
            both = torch.cat([real, generated.detach()], dim=1)
            (logits,) = self._discriminators(both.flatten(0, 2), views=2, mask=batch.mask)
            discriminating = discriminator_losses(logits.squeeze(-1), batch.mask)
            self._discriminators.backward(discriminating.sum())
        with section("GAN: optimizers"):
            of_discriminators.step(count)
        with section("GAN: generator"):
            with self._discriminators.frozen():
                (logits,) = self._discriminators(generated.flatten(0, 2), mask=batch.mask)
            # Binary cross-entropy with 1 (Goodfellow et al. 2014, Section 3).
            generating = batch_mean(-F.logsigmoid(logits[:, 0, :, 0]), batch.mask)
            self._generators.backward(generating.sum())
        with section("GAN: optimizers"):
            of_generators.step(count)
        return generating, discriminating

    def _random_inputs(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw noise and codes, of shape (count, noise + codes), on the CPU."""
        noise = torch.randn(count, self.config.noise, generator=generator)
        return self._with_codes(noise, torch.randint(self.codes, (count,), generator=generator))

    def _with_codes(self, noise: Tensor, codes: Tensor) -> Tensor:
        return torch.cat([noise, F.one_hot(codes, self.codes).to(noise.dtype)], dim=1)

    @torch.no_grad()
    def _drawn(self, client: Client, randomness: Randomness) -> Tensor | RefusedUpdateError:
        if len(client) < 2:
            return RefusedUpdateError("it holds one image, and a GAN needs at least two")
        remembered = memory_of(client.memory, "generator")
        if not remembered:
            return RefusedUpdateError("its GAN has not been trained for an epoch")
        self._generators.load(0, remembered)
        self._generators.activate(1)
        self._generators.train(False)
        count, generator = self.config.images or len(client), randomness.generator("images")
        noise = torch.randn(count, self.config.noise, generator=generator)
        inputs = self._with_codes(noise, torch.arange(count) % self.codes)
        drawn = []
        for some in torch.split(inputs, self._forward_batch):
            (images,) = self._generators(some.to(self.device))
            if not images.isfinite().all():
                return RefusedUpdateError(_DIVERGED)
            drawn.append((images[0, 0] * 255).round().to(torch.uint8))
        return torch.cat(drawn)
