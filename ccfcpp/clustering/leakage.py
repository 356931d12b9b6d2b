"""Attacks on a finished run, which measure how much it reveals of its training images."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.follow_up import FinishedRun, number_of_client
from ccfcpp.clustering.kmeans.server import nearest
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.setup import left_out
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import SERVER, Randomness
from ccfcpp.core.units import format_count
from ccfcpp.data.images import sample_indices
from ccfcpp.engine.checkpoint import load_checkpoint
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Task
from ccfcpp.privacy.leakage import measure_inversion, measure_membership, shift_images

_MOST_IMAGES = 5000
"""Largest number of images of either kind in a membership attack."""
_LEAST_IMAGES = 20

Leakage = dict[str, Any]


def leakage(path: Path, client: str | None = None) -> Leakage:
    """Attack a finished run by membership inference, and by inversion if centroids are pixels.

    Args:
        path: The run's folder, which gets a file ``leakage.json``.
        client: Name or number of a client, to attack its images alone; the run may have forgotten
            it. None: the images of all clients that took part.

    Raises:
        UsageError: The folder holds no finished run of ``ccfcpp cluster`` in one process, there is
            no such client, or no image is left that its model was not trained on.
    """
    finished = FinishedRun.open(path, "the attack")
    folder, config = finished.folder, finished.config
    if config.data_kind == "vectors":  # nothing is loaded before
        raise UsageError(
            f"the attacks move images by a pixel, and the run in {folder.path} is of vectors: give "
            "a run of images"
        )
    run = clustering_run(config)
    kind = run.algorithm.state_type
    state = load_checkpoint(folder.checkpoint, kind, run.device).state
    found: Leakage = {
        "membership": _membership(run, state, client),
        "inversion": _inversion(run, state),
    }
    folder.write_leakage(found)
    return found


def _of_client(run: ClusteringRun, client: str) -> Tensor:
    """Return the indices of a client's images."""
    number = number_of_client(client, dict(enumerate(run.names)))
    if number is None:
        raise UsageError(
            f"client = {client} is refused: the run's clients are 0 to {len(run.parts) - 1}"
        )
    return run.parts[number]


def _membership(run: ClusteringRun, state: Any, client: str | None) -> Leakage:
    values, own = run.data.values, torch.zeros(0, dtype=torch.int64)
    if client is None:
        members = torch.cat([one.images for one in run.clients])
    else:
        own = _of_client(run, client)
        members = values[own.to(values.device)]
        if len(members) < _LEAST_IMAGES:
            raise UsageError(
                f"client = {client} holds {format_count(len(members), 'image')}, and an attack "
                f"needs {_LEAST_IMAGES}: name another one"
            )
    others = _others(run, own)
    generator = Randomness(0).generator("membership")
    mixed = []
    for images in (members, others.to(members.device)):
        part = sample_indices(torch.arange(len(images)), _MOST_IMAGES, generator)
        mixed.append(images[part[torch.randperm(len(part), generator=generator)]])
    inside, outside = (_losses(run, state, images) for images in mixed)
    attacks = {name: asdict(measure_membership(inside[name], outside[name])) for name in inside}
    found: Leakage = {"members": len(mixed[0]), "others": len(mixed[1]), "attacks": attacks}
    return found if client is None else found | {"client": client}


def _others(run: ClusteringRun, apart: Tensor) -> Tensor:
    """Return images that the model was not trained on, without those with indices ``apart``.

    They are images that the run left out, or else those of absent clients.
    """
    found = left_out(run.evaluator.config)
    free = run.evaluator.unheld[~torch.isin(run.evaluator.unheld, apart)]
    images = run.data.values[free] if found is None else found.values
    if len(images) < _LEAST_IMAGES:
        held = len(run.data) - len(free)
        raise UsageError(
            f"membership compares images that the run was trained on with {_LEAST_IMAGES} others "
            f"or more, and {run.config.dataset} has {len(images)} others: cluster a part of its "
            f"images, such as --set data.images={held * 2 // 3}, and attack that run"
        )
    return images


def _losses(run: ClusteringRun, state: Any, images: Tensor) -> dict[str, Tensor]:
    """Return quantities of each image that training lowers, by name, on the CPU.

    ``distance``: to the nearest centroid. ``views``: of an image's representation to those of the
    image moved by a pixel, as a share of its length: training makes views of a training image more
    alike than those of other images (Liu, Jia, Qu and Gong, *EncoderMI*, CCS 2021).
    ``calibrated distance``: the first, less the mean of it for the moved images.
    """
    points = _points(run, state, images)
    moved = torch.stack([_points(run, state, other) for other in shift_images(images)])
    found = {"views": (moved - points).norm(dim=2).mean(dim=0) / points.norm(dim=1).clamp(1e-12)}
    if state.centroids is not None:
        far = _distance(points, state.centroids)
        of_moved = torch.stack([_distance(each, state.centroids) for each in moved])
        found |= {"distance": far, "calibrated distance": far - of_moved.mean(dim=0)}
    return {name: loss.cpu() for name, loss in sorted(found.items())}


def _points(run: ClusteringRun, state: Any, images: Tensor) -> Tensor:
    points: Tensor | None = run.algorithm.represent(state, Client(SERVER, "attacker", images))
    if points is None:
        raise UsageError(
            f"{run.config.method} has no space in which all images lie: take another system"
        )
    return F.normalize(points, dim=1) if run.algorithm.by_angle else points


def _distance(points: Tensor, centroids: Tensor) -> Tensor:
    far: Tensor = (points - centroids[nearest(points, centroids)]).norm(dim=1)
    return far


def _inversion(run: ClusteringRun, state: Any) -> list[Leakage] | None:
    """Attack the averages of pixels that clients send after the last round; None without such."""
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
            averages = _averages(update)
            points = run.algorithm.represent(state, client)
            if averages is not None and len(averages) and points is not None:
                sent.append((averages, points))
    return [asdict(group) for group in measure_inversion(sent)] if sent else None


def _averages(update: object) -> Tensor | None:
    """Return the centroids in an update that are averages of images; None without them."""
    centroids: Tensor | None = getattr(update, "centroids", None)
    supports: Tensor | None = getattr(update, "supports", None)
    if centroids is None or supports is None:
        return centroids
    return centroids[supports > 0]
