"""One training step of several clients: ccfcpp's stacks, ``torch.func.vmap``, and one by one.

A step is that of pre-training: two views of a batch forward, SimSiam's loss, backward, Adam.
"""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import (
    functional_call,
    grad_and_value,
    replace_all_batch_norm_modules_,
    stack_module_state,
    vmap,
)

from ccfcpp.clustering.ccfc.losses import siamese
from ccfcpp.clustering.ccfc.network import ContrastiveModel
from ccfcpp.models.encoders import ConvBackbone
from ccfcpp.models.stack.optimizers import StackedAdam
from ccfcpp.models.stack.stacked import ModelStack
from scripts.timing import Seconds, alternate

CLIENTS, BATCH, SHAPE = 10, 128, (1, 28, 28)
_RATE = 1e-3

Step = Callable[[], Tensor]
"""Trains every client for one step and gives their losses, of shape (clients,)."""


def vmap_steps(device: torch.device, repeats: int) -> tuple[Seconds, dict[str, float]]:
    """Seconds of a step each way, and how far the losses of a few steps are apart."""
    models = [make_model().to(device) for _ in range(CLIENTS)]
    views = torch.rand(CLIENTS, 2, BATCH, *SHAPE, device=device)
    alone = [
        stacked([model], own) for model, own in zip(models, torch.split(views, 1), strict=True)
    ]
    ways: dict[str, Step] = {
        "ten clients' step, plain": one_by_one(copy.deepcopy(models), views),
        "ten clients' step, vmap": by_vmap(copy.deepcopy(models), views),
        "ten clients' step, ccfcpp, a stack of ten": stacked(models, views),
        "ten clients' step, ccfcpp, ten of one": lambda: torch.cat([step() for step in alone]),
    }
    losses = [torch.stack([step() for _ in range(5)]) for step in ways.values()]
    apart = max(float((other - losses[0]).abs().max()) for other in losses[1:])
    return alternate(dict(ways), repeats), {"losses of five steps, largest difference": apart}


def make_model() -> nn.Module:
    """The network of the MNIST preset."""
    return ContrastiveModel(ConvBackbone(SHAPE, (64, 128, 256)), 256, 256, 16)


def stacked(models: Sequence[nn.Module], views: Tensor) -> Step:
    """The clients in one stack, as ccfcpp trains a cohort."""
    stack = ModelStack(make_model, len(models), views.device)
    for index, model in enumerate(models):
        stack.load(index, model.state_dict())
    adam = StackedAdam(stack.parameters, stack.gradients, _RATE)
    batch = views.flatten(0, 2).contiguous(memory_format=torch.channels_last)

    def step() -> Tensor:
        z, p = stack(batch, views=2)
        losses = siamese((p[:, 0], p[:, 1]), (z[:, 0], z[:, 1]))
        stack.backward(losses.sum())
        adam.step(len(models))
        return losses.detach()

    return step


def by_vmap(models: Sequence[nn.Module], views: Tensor) -> Step:
    """All clients under ``vmap``, and one Adam over their stacked weights.

    ``vmap`` cannot change a buffer in place, so BatchNorm keeps no running statistics here. The
    trained networks cannot be evaluated; the figure leaves out what it takes to keep them.
    """
    for model in models:
        replace_all_batch_norm_modules_(model)
    parameters, buffers = stack_module_state(list(models))
    skeleton = copy.deepcopy(models[0]).to("meta")
    # Adam works entry by entry: over stacked weights it is the Adam of each client.
    adam = torch.optim.Adam(parameters.values(), lr=_RATE, fused=True)

    def loss(own: dict[str, Tensor], statistics: dict[str, Tensor], images: Tensor) -> Tensor:
        (z1, p1), (z2, p2) = (functional_call(skeleton, (own, statistics), v) for v in images)
        return siamese((p1, p2), (z1, z2))

    gradients_and_losses = vmap(grad_and_value(loss))

    @torch.no_grad()  # else there would be a second graph, of the gradients
    def step() -> Tensor:
        gradients, values = gradients_and_losses(parameters, buffers, views)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
        adam.step()
        losses: Tensor = values
        return losses

    return step


def one_by_one(models: Sequence[nn.Module], views: Tensor) -> Step:
    """Plain modules, one client after the other."""
    adams = [torch.optim.Adam(model.parameters(), lr=_RATE, fused=True) for model in models]

    def step() -> Tensor:
        losses = []
        for model, adam, (first, second) in zip(models, adams, views, strict=True):
            (z1, p1), (z2, p2) = model(first), model(second)
            loss = siamese((p1, p2), (z1, z2))
            adam.zero_grad()
            torch.autograd.backward(loss)
            adam.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    return step
