"""Count the images that a curious server recovers from sums: ``python -m scripts.curious --help``.

The server asks clients for gradients of Fed-SCAN's loss at fixed weights, with a hidden layer
directly on the pixels: one image's contribution to the layer's gradient, divided by that to the
bias's gradient, is the image. The server sees only sums over batches. It solves the linear system
that the batches by the run's seed would give, and tries whether single sums, and differences of two
sums, are the contribution of one image.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.preprocessing.make_algorithm import make_algorithm
from ccfcpp.core.config import AffineViewsConfig, IntensityViewsConfig, Tree
from ccfcpp.core.config_layers import resolve
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import ImageData
from ccfcpp.data.open import load
from ccfcpp.deployment.client.rules import Rules
from ccfcpp.deployment.client.worker import Worker
from ccfcpp.deployment.link.algorithms import clustering_problem
from ccfcpp.deployment.link.messages import (
    Request,
    Response,
    deserialize,
    new_token,
    serialize,
)
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.engine.synchronised.contract import Contribution, StepMessage
from ccfcpp.engine.synchronised.descent import select_images
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.per_image_clipping import ImageBounding
from ccfcpp.privacy.sums.messages import BoundedParts, within_bounds

CLUSTERS, HIDDEN, BATCH = 3, 16, 10
NOISE = 3.54
"""Standard deviation of a sum's noise, relative to an image's bound: ε = 8 for the 60 steps of
docs/trust.md."""
OPEN = Rules(
    allow=("pixels",), accept=("all",), reproducible=True, smallest_count=0, most_exchanges=10**6
)


@dataclass(frozen=True)
class Owner:
    """Data owner that the attack is tried on: name, rules, and whether sums have noise."""

    name: str
    rules: Rules
    noise: bool = False


def owners() -> list[Owner]:
    """Return the compared owners, from no protection to the default rules."""

    def open_except(**rules: Any) -> Rules:
        return OPEN.model_copy(update=rules)

    return [
        Owner("batches by the run's seed", OPEN),
        Owner("the same, noise of ε = 8", OPEN, noise=True),
        Owner("the same, in groups of 5", open_except(smallest_count=5)),
        Owner("batches of the client's own", open_except(reproducible=False)),
        Owner("the same, in groups of 5", open_except(reproducible=False, smallest_count=5)),
        Owner("default rules", Rules(most_exchanges=10**6)),
    ]


def describe_run(images: Tensor, steps: int, noise: bool, clients: int) -> RunSpec:
    """Describe the run that the server asks for: its learning rate is almost 0."""
    scan: Tree = {"stem": 0, "widths": [], "hidden": HIDDEN, "latent": 8, "normalisation": "layer"}
    scan |= {"pairs": "views", "overclustering": 1, "steps": steps, "batch": BATCH}
    scan |= {"optimizer": "adam", "learning_rate": 1e-30, "precision": "full"}
    given: Tree = {"method": "fed-scan", "clusters": CLUSTERS, "scan": scan}
    for views in (AffineViewsConfig, IntensityViewsConfig):  # none
        given[views.__name__[:-11].lower()] = dict.fromkeys(views.model_fields, 0.0)
    if noise:
        privacy = {"level": "image", "noise": NOISE, "reproducible_noise": True}
        given |= {"privacy": privacy}
    config = resolve(ClusterConfig, "cluster", given)
    return RunSpec(
        command="cluster",
        config=config.model_dump(mode="json"),
        image_shape=tuple(images.shape[1:]),
        clusters=CLUSTERS,
        samples=len(images),
        clients=clients,
    )


class CuriousServer:
    """Curious server: asks all clients for gradients, and adds these up."""

    def __init__(self, spec: RunSpec, workers: Sequence[Worker]) -> None:
        self.spec, self.workers, self.run = spec, workers, new_token()
        config = resolve(ClusterConfig, "cluster", spec.config)
        algorithm: Any = make_algorithm(clustering_problem(config, spec, torch.device("cpu")))
        self.model = algorithm.initial_state(Randomness(0)).model
        self.noisy = config.privacy.level != "none"
        exchanges = algorithm.descent.exchanges
        self.exchanges = [(within_bounds(e) if self.noisy else e).name for e in exchanges]

    def sums(self, steps: int) -> Tensor | None:
        """Return the gradients of the layer and its bias, summed over clients; None if one refused.

        They are float64 of shape (steps, hidden, d + 1), with the bias's in the last column.
        """
        clients = range(len(self.workers))
        try:
            gradients = [self._step(step, client) for step in range(steps) for client in clients]
        except RefusedUpdateError:
            return None
        each = torch.stack(gradients)
        return each.view(steps, len(clients), *each.shape[1:]).sum(dim=1)

    def _step(self, step: int, client: int) -> Tensor:
        self._request(client, step, 0, StepMessage(step, self.model))
        totals = {"predictions": torch.full((CLUSTERS,), 2.0 * BATCH / CLUSTERS).double()}
        gradient = self._request(client, step, 1, StepMessage(step, totals=totals))
        weight = next(n for n, p in gradient.items() if p.ndim == 2 and len(p) == HIDDEN)
        bias = gradient[weight.removesuffix("weight") + "bias"]
        return torch.cat([gradient[weight], bias[:, None]], dim=1).double()

    def _request(self, client: int, step: int, index: int, known: StepMessage) -> dict[str, Tensor]:
        request = Request(
            kind="work",
            run=self.run,
            nonce=new_token(),
            spec=self.spec,
            client=client,
            exchange=self.exchanges[index],
            round=step,
            index=index,
            samples=self.spec.samples,
        )
        answer = self.workers[client].answer(Packet(request.to_json(), serialize(known)))
        response = Response.read_reply(request, answer.header)
        if response.status == "failed":
            raise RuntimeError("a client cannot do its work")
        if response.status != "done":
            raise RefusedUpdateError(response.reason)
        kind: type[Any] = BoundedParts if self.noisy else Contribution
        update: Any = deserialize(kind, answer.payload, torch.device("cpu"))
        if not self.noisy:
            return dict(update.gradient)
        parts = {n.partition("/")[2]: p for n, p in update.parts.items() if "gradient/" in n}
        if client > 0:  # One part of the noise is enough for the sum.
            return parts
        drawn = torch.Generator().manual_seed(step)
        return {n: p + NOISE * torch.randn(p.shape, generator=drawn) for n, p in parts.items()}


def count_recovered(
    images: Tensor, steps: int, owner: Owner, folder: Path, clients: int = 1
) -> int | None:
    """Count the images that the server recovers exactly; None if the owner has refused a step.

    ``images`` are uint8; they are divided among ``clients``, whose state is in ``folder``.
    """
    parts = torch.chunk(images, clients)
    spec = describe_run(images, steps, owner.noise, clients)

    def worker(client: int) -> Worker:
        data = ImageData("some", parts[client], None, ())
        return Worker(lambda spec: data, folder / str(client), owner.rules)

    sums = CuriousServer(spec, [worker(client) for client in range(clients)]).sums(steps)
    known = {image.tobytes() for image in images.flatten(1).numpy()}
    if sums is None:
        return None
    candidates = list(_candidates(sums, _batches([*map(len, parts)], steps, owner)))
    return len(known & {_image(part).numpy().tobytes() for parts in candidates for part in parts})


def _batches(sizes: Sequence[int], steps: int, owner: Owner) -> Tensor:
    """Count how often each image is in each step's batch by the run's seed, as (steps, images)."""
    bounding = ImageBounding(PrivacyConfig(level="image", reproducible_noise=True))
    counts = torch.zeros(steps, sum(sizes), dtype=torch.float64)
    for step, client in itertools.product(range(steps), range(len(sizes))):
        size, source = sizes[client], Randomness(0).of_client(client)
        share = BATCH * size / sum(sizes)
        if owner.noise:
            shown = bounding.select_images(size, share, step, source)
        else:
            shown = select_images(size, share, step, source, owner.rules.smallest_count)
        for image in shown.tolist():
            counts[step, sum(sizes[:client]) + image] += 1
    return counts


def _candidates(sums: Tensor, batches: Tensor) -> Iterator[Tensor]:
    """Yield candidates for single images' gradients, each of shape (n, hidden, d + 1)."""
    yield sums
    solved = torch.linalg.lstsq(batches, sums.flatten(1), driver="gelsd").solution
    yield solved.view(-1, *sums.shape[1:])
    for number in range(len(sums)):
        yield sums[number] - sums[:number]


def _image(part: Tensor) -> Tensor:
    """Compute the image, uint8 of shape (d,), from its contribution (hidden, d + 1)."""
    row = part[part[:, -1].abs().argmax()]
    return (row[:-1] / row[-1] * 255).nan_to_num().round().clamp(0, 255).to(torch.uint8)


def main(
    images: Annotated[int, typer.Option(help="Images of all clients.")] = 60,
    steps: Annotated[str, typer.Option(help="Numbers of steps.")] = "60,120,240",
    clients: Annotated[int, typer.Option(help="The server sees the sum over so many.")] = 1,
) -> None:
    """Print a table of recovered images, by the owner's rules and the number of steps."""
    some = load("digits").images[:images]
    several: Sequence[int] = [int(each) for each in steps.split(",")]
    print("| owner's rules | " + " | ".join(f"{each} steps" for each in several) + " |")
    print("|---" * (len(several) + 1) + "|")
    for owner in owners():
        cells = []
        for each in several:
            with tempfile.TemporaryDirectory() as folder:
                count = count_recovered(some, each, owner, Path(folder), clients)
                cells.append("refused" if count is None else f"{count} of {images}")
        print(f"| {owner.name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    typer.run(main)
