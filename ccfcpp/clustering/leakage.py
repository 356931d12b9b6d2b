"""Privacy attacks on a finished run, which measure how much it reveals of its training images."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.follow_up import FinishedRun, number_of_client
from ccfcpp.clustering.kmeans.server import nearest
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.setup import left_out_data
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import SERVER, Randomness
from ccfcpp.core.units import format_count
from ccfcpp.data.images import sample_indices
from ccfcpp.engine.checkpoint import load_checkpoint
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Task
from ccfcpp.privacy.leakage import measure_inversion, measure_membership, shift_images

_MOST_IMAGES = 5000
"""Largest number of training images, and of other images, in a membership attack."""
_LEAST_IMAGES = 20
"""Fewest images of either sort."""

Leakage = dict[str, Any]


def leakage(path: Path, client: str | None = None) -> Leakage:
    """Attack a finished run by membership inference; also by inversion if it sends mean images.

    Membership inference tells training images from others; inversion reconstructs them.

    Args:
        path: The run's folder, in which ``leakage.json`` is written.
        client: Name or number of a client, to attack only its images; also one without which the
            run was made (``ccfcpp forget``). None: the images of all clients that took part.

    Returns:
        The content of ``leakage.json``: the results under ``membership`` and ``inversion``.

    Raises:
        UsageError: The folder holds no finished run of ``ccfcpp cluster`` in one process, there is
            no such client, or no image is left that its model was not trained on.
    """
    finished = FinishedRun.open(path, "the attack")
    folder, config = finished.folder, finished.config
    if config.data_kind == "vectors":
        raise UsageError(
            f"the attacks move images by a pixel, and the run in {folder.path} is of vectors: give "
            "a run of images"
        )
    run = clustering_run(config)
    kind = run.algorithm.state_type
    state = load_checkpoint(folder.checkpoint, kind, run.device).state
    results: Leakage = {
        "membership": _membership(run, state, client),
        "inversion": _inversion(run, state),
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
                f"client = {client} holds {format_count(len(members), 'image')}, and an attack "
                f"needs {_LEAST_IMAGES}: name another one"
            )
    others = _untrained_images(run, own)
    generator = Randomness(0).generator("membership")
    drawn = []
    for images in (members, others.to(members.device)):
        part = sample_indices(torch.arange(len(images)), _MOST_IMAGES, generator)
        drawn.append(images[part[torch.randperm(len(part), generator=generator)]])
    inside, outside = (_losses(run, state, images) for images in drawn)
    attacks = {name: asdict(measure_membership(inside[name], outside[name])) for name in inside}
    result: Leakage = {"members": len(drawn[0]), "others": len(drawn[1]), "attacks": attacks}
    return result if client is None else result | {"client": client}


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
            f"membership compares images that the run was trained on with {_LEAST_IMAGES} others "
            f"or more, and {run.config.dataset} has {len(images)} others: cluster a part of its "
            f"images, such as --set data.images={held * 2 // 3}, and attack that run"
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
    moved = torch.stack([_points(run, state, other) for other in shift_images(images)])
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


def _inversion(run: ClusteringRun, state: Any) -> list[Leakage] | None:
    """Reconstruct images from the mean images sent in the last round; None if none are sent."""
    if not run.algorithm.by_pixels:
        return None
    number = run.algorithm.rounds - 1
    randomness = run.randomness.at_round(number)
    sent = []
    for index, work in enumerate(run.algorithm.exchanges(number, state)):
        task = Task(run.system, work.exchange.name, number, index)
        clients = run.client_side.works[work.exchange.name]
        for client in run.clients:
            (update,) = clients.local_updates(task, work.broadcast(state), [client], randomness)
            averages = _mean_images(update)
            points = run.algorithm.represent(state, client)
            if averages is not None and len(averages) and points is not None:
                sent.append((averages, points))
    return [asdict(group) for group in measure_inversion(sent)] if sent else None


def _mean_images(update: object) -> Tensor | None:
    """Return the centroids of a client's update, without empty clusters; None if it has none."""
    centroids: Tensor | None = getattr(update, "centroids", None)
    supports: Tensor | None = getattr(update, "supports", None)
    if centroids is None or supports is None:
        return centroids
    return centroids[supports > 0]
