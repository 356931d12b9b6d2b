"""Privacy attacks on a finished run, which measure how much it reveals of its training images."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.follow_up import FinishedRun, number_of_client
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.kmeans.server import nearest
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.setup import left_out_data
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import SERVER, Randomness
from ccfcpp.core.units import format_count
from ccfcpp.data.images import sample_indices, to_float
from ccfcpp.engine.checkpoint import load_checkpoint
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Task
from ccfcpp.privacy import leakage as measures

_MOST_IMAGES = 5000
"""Largest number of training images, and of other images, in a membership attack."""
_LEAST_IMAGES = 20
"""Fewest images of either sort."""

Leakage = dict[str, Any]
Sent = tuple[Client, object]  # a client, and an update of it


def leakage(path: Path, client: str | None = None) -> Leakage:
    """Attack a finished run by membership inference, inversion, and the graphs that clients send.

    Membership inference tells training images from others; inversion reconstructs them.

    Args:
        path: The run's folder, in which ``leakage.json`` is written.
        client: Name or number of a client, whose images alone the model is asked about; also one
            without which the run was made (``ccfcpp forget``). None: those of all that took part.

    Returns:
        The content of ``leakage.json``, by attack; None for an attack that needs what is not sent.

    Raises:
        UsageError: The folder holds no finished run of ``ccfcpp cluster`` in one process, there is
            no such client, or no image is left that its model was not trained on.
    """
    finished = FinishedRun.open(path, "the attack")
    folder, run = finished.folder, clustering_run(finished.config)
    kind = run.algorithm.state_type
    state = load_checkpoint(folder.checkpoint, kind, run.device).state
    sent = [*_sent(run, run.algorithm.rounds - 1, state)] if run.algorithm.by_pixels else []
    results: Leakage = {
        "unit": run.data.unit,
        "membership": _membership(run, state, client),
        "inversion": _inversion(run, state, sent),
        "decoders": _decoders(run),
        "graphs": _graphs(run, sent),
    }
    folder.write_leakage(results)
    return results


def _samples_of_client(run: ClusteringRun, client: str) -> Tensor:
    """Return the indices of a client's images, given the client's name or number."""
    number = number_of_client(client, dict(enumerate(run.names)))
    if number is None:
        raise UsageError(
            f"client = {client} is refused: the run's clients are 0 to {len(run.parts) - 1}"
        )
    return run.parts[number]


def _membership(run: ClusteringRun, state: Any, client: str | None) -> Leakage:
    """Run membership inference on one or all clients' images, by each quantity of ``_losses``."""
    values, own = run.data.values, torch.zeros(0, dtype=torch.int64)
    if client is None:
        members = torch.cat([one.images for one in run.clients])
    else:
        own = _samples_of_client(run, client)
        members = values[own.to(values.device)]
        if len(members) < _LEAST_IMAGES:
            raise UsageError(
                f"client = {client} holds {format_count(len(members), run.data.unit)}, and an "
                f"attack needs {_LEAST_IMAGES}: name another one"
            )
    others = _untrained_images(run, own)
    generator = Randomness(0).generator("membership")
    drawn = [_some(each, _MOST_IMAGES, generator) for each in (members, others.to(members.device))]
    result = _attacks(*(_losses(run, state, images) for images in drawn))
    return result if client is None else result | {"client": client}


def _some(rows: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Draw at most so many rows, in random order."""
    part = sample_indices(torch.arange(len(rows)), most, generator)
    return rows[part[torch.randperm(len(part), generator=generator)]]


def _attacks(inside: Mapping[str, Tensor], outside: Mapping[str, Tensor]) -> Leakage:
    found = {n: asdict(measures.measure_membership(inside[n], outside[n])) for n in inside}
    members, others = (len(next(iter(losses.values()))) for losses in (inside, outside))
    return {"members": members, "others": others, "attacks": found}


def _untrained_images(run: ClusteringRun, excluded: Tensor) -> Tensor:
    """Return images that the model was not trained on, except those with indices ``excluded``.

    They are the images that ``data.images`` left out, or else those of absent clients.
    """
    data = left_out_data(run.evaluator.config)
    absent = run.evaluator.unheld[~torch.isin(run.evaluator.unheld, excluded)]
    images = run.data.values[absent] if data is None else data.values
    if len(images) < _LEAST_IMAGES:
        held = len(run.data) - len(absent)
        raise UsageError(
            f"membership compares {run.data.unit}s that the run was trained on with "
            f"{_LEAST_IMAGES} others or more, and {run.config.dataset} has "
            f"{format_count(len(images), 'other')}: cluster a part of it, such as "
            f"--set data.images={held * 2 // 3}, and attack that run"
        )
    return images


def _losses(run: ClusteringRun, state: Any, images: Tensor) -> dict[str, Tensor]:
    """Return quantities that are lower for training images, each of shape (images,) on the CPU.

    ``distance``: from the image's representation to the nearest centroid.
    ``views``: mean distance from the representation to those of the image moved by a pixel, over
    its length. Training makes views of a training image more alike than those of other images
    (Liu, Jia, Qu and Gong, *EncoderMI*, CCS 2021).
    ``calibrated distance``: ``distance`` minus its mean over the moved images.
    """
    points = _points(run, state, images)
    if images.ndim == 2:  # vectors, which cannot be moved by a pixel
        return {"distance": _distance_to_nearest(points, required_centroids(state.centroids)).cpu()}
    moved = torch.stack([_points(run, state, other) for other in measures.shift_images(images)])
    losses = {"views": (moved - points).norm(dim=2).mean(dim=0) / points.norm(dim=1).clamp(1e-12)}
    if state.centroids is not None:
        distance = _distance_to_nearest(points, state.centroids)
        of_moved = torch.stack([_distance_to_nearest(each, state.centroids) for each in moved])
        losses |= {"distance": distance, "calibrated distance": distance - of_moved.mean(dim=0)}
    return {name: loss.cpu() for name, loss in sorted(losses.items())}


def _points(run: ClusteringRun, state: Any, images: Tensor) -> Tensor:
    points: Tensor | None = run.algorithm.represent(state, Client(SERVER, "attacker", images))
    if points is None:
        raise UsageError(
            f"{run.config.method} has no space in which all images lie: take another system"
        )
    return F.normalize(points, dim=1) if run.algorithm.by_angle else points


def _distance_to_nearest(points: Tensor, centroids: Tensor) -> Tensor:
    distances: Tensor = (points - centroids[nearest(points, centroids)]).norm(dim=1)
    return distances


def _sent(run: ClusteringRun, number: int, state: Any) -> Iterator[Sent]:
    """Yield each client with each of its updates of a round, which it computes again."""
    randomness = run.randomness.at_round(number)
    for index, work in enumerate(run.algorithm.exchanges(number, state)):
        task = Task(run.system, work.exchange.name, number, index)
        clients = run.client_side.works[work.exchange.name]
        for client in run.clients:
            (update,) = clients.local_updates(task, work.broadcast(state), [client], randomness)
            yield client, update


def _inversion(run: ClusteringRun, state: Any, sent: Sequence[Sent]) -> list[Leakage] | None:
    """Reconstruct images from the mean images in updates; None if there are none."""
    found = []
    for client, update in sent:
        averages, points = _mean_images(update), run.algorithm.represent(state, client)
        if averages is not None and len(averages) and points is not None:
            found.append((averages, points))
    return [asdict(group) for group in measures.measure_inversion(found)] if found else None


def _decoders(run: ClusteringRun) -> Leakage | None:
    """Distinguish each client's images from as many others by the decoder that it sent."""
    if run.algorithm.by_decoder is None:
        return None
    others = _untrained_images(run, torch.zeros(0, dtype=torch.int64)).to(run.device)
    generator, losses, nearer = Randomness(0).generator("decoders"), [], []
    for client, update in _sent(run, 0, run.initial_state):
        network, latents = run.algorithm.by_decoder(update, generator)
        count = min(len(client), len(others), _MOST_IMAGES)
        both = [_some(images, count, generator) for images in (client.images, others)]
        points = to_float(torch.cat(both)).flatten(1)
        losses.append(measures.reconstruction_losses(network, latents, points).view(2, count))
        to_either = torch.cdist(network(latents)[0], points).view(-1, 2, count).amin(dim=2)
        nearer.append(to_either[:, 0] < to_either[:, 1])
    attacked = _attacks(*({"reconstruction": each} for each in torch.cat(losses, dim=1).cpu()))
    return attacked | {"nearer": float(torch.cat(nearer).double().mean())}


def _graphs(run: ClusteringRun, sent: Sequence[Sent]) -> Leakage | None:
    """Distinguish pairs of one class from others by clients' graphs; None without, or no labels."""
    found, labels = [torch.zeros(3, 0, dtype=torch.float64)], run.data.labels
    for client, update in sent:
        graph = getattr(update, "graph", None)
        if graph is not None and labels is not None:
            classes, graph = labels[run.parts[client.id]].cpu(), graph + graph.T
            first, second = pairs = torch.triu_indices(len(graph), len(graph), 1).unbind()
            alike, linked = classes[first] == classes[second], graph[pairs] > 0
            found.append(
                torch.stack([alike.double(), linked.double(), measures.path_losses(graph)[pairs]])
            )
    alike, linked, losses = torch.cat(found, dim=1).unbind()
    generator = Randomness(0).generator("graphs")
    kinds = [_some(losses[alike == kind], _MOST_IMAGES, generator) for kind in (1, 0)]
    if min(map(len, kinds)) < 2:
        return None
    shares = {"linked": float(alike[linked == 1].mean()), "alike": float(alike.mean())}
    return _attacks(*({"paths": each} for each in kinds)) | shares


def _mean_images(update: object) -> Tensor | None:
    """Return the centroids of a client's update, without empty clusters; None if it has none."""
    centroids: Tensor | None = getattr(update, "centroids", None)
    supports: Tensor | None = getattr(update, "supports", None)
    if centroids is None or supports is None:
        return centroids
    return centroids[supports > 0]
