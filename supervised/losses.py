"""Loss terms that a client adds to the cross-entropy.

Sources: Shi et al., *Understanding and Mitigating Dimensional Collapse in Federated Learning*
("the paper" below); Cogswell et al. 2016 (DeCov); Xiong et al. 2016 (Structured-DeCov); Li, He and
Song 2021 (MOON).

Leading axes (…) are independent losses. A batch of one sample gives a differentiable 0.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.errors import UsageError
from ccfcpp.models.decorrelation import feddecorr, squared_norms, squared_products, subtract_mean
from supervised.config import AnyTerm, FedDecorr, StructuredDeCov

DecorrelationTerm = Callable[[Tensor], Tensor]
"""Function from representations (batch, dimensions) to a scalar loss term."""


def decov(representations: Tensor) -> Tensor:
    """Compute the DeCov loss (Cogswell et al. 2016, Eq. (3)): squared covariances of dimensions.

    Args:
        representations: z of shape (…, batch, dimensions).

    Returns:
        Tensor of shape (…): ½(‖C‖²_F − ‖diag C‖²); C is the covariance matrix over the batch,
        divided by the batch size.

    Example:
        >>> import torch
        >>> decov(torch.tensor([[1.0, 2.0], [-1.0, -2.0]]))  # The covariance off the diagonal is 2.
        tensor(4.)
    """
    residuals, batch = subtract_mean(representations), representations.shape[-2]
    return (squared_products(residuals) - squared_norms(residuals)) / (2 * batch**2)


def structured_decov(representations: Tensor, groups: int) -> Tensor:
    """Compute the Structured-DeCov loss: squared covariances of dimensions of different groups.

    Xiong et al. 2016; here a group consists of consecutive dimensions.

    Args:
        representations: z of shape (…, batch, dimensions).
        groups: Number of groups; with as many groups as dimensions the term is DeCov.

    Returns:
        Tensor of shape (…): ½ Σ C_ij² over all i, j of different groups; C as in ``decov``.

    Raises:
        ValueError: The number of groups does not divide the number of dimensions.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 2.0, 0.0, 0.0], [-1.0, -2.0, 0.0, 0.0]])
        >>> structured_decov(z, groups=2)  # The correlated dimensions are of the same group.
        tensor(0.)
    """
    dimensions = representations.shape[-1]
    if dimensions % groups:
        raise ValueError(f"{dimensions} dimensions cannot be divided into {groups} groups")
    residuals, batch = subtract_mean(representations), representations.shape[-2]
    by_group = residuals.view(*residuals.shape[:-1], groups, -1).movedim(-2, -3)
    within = squared_products(by_group).sum(dim=-1)
    return (squared_products(residuals) - within) / (2 * batch**2)


def model_contrast(
    representations: Tensor, of_global: Tensor, of_previous: Tensor, temperature: float
) -> Tensor:
    """Compute MOON's model-contrastive loss (Li, He and Song 2021, Eq. (3)), without its weight μ.

    Args:
        representations: z of shape (…, batch, dimensions), the only input with a gradient.
        of_global: Representations z_g of the global model, of the same shape.
        of_previous: Representations z_p of the client's previous model, of the same shape.
        temperature: Temperature τ of the softmax.

    Returns:
        Tensor of shape (…): the mean over the batch of −log(e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ}
        + e^{cos(z, z_p)/τ})).

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0]])
        >>> model_contrast(z, z, z, temperature=0.5)  # Both models agree with z: log 2.
        tensor(0.6931)
    """
    towards = F.cosine_similarity(representations, of_global.detach(), dim=-1)
    away = F.cosine_similarity(representations, of_previous.detach(), dim=-1)
    return F.softplus((away - towards) / temperature).mean(dim=-1)


def decorrelation_term(config: AnyTerm, dimensions: int) -> DecorrelationTerm | None:
    """Return the configured decorrelation term, without its weight; None if there is none.

    Raises:
        UsageError: The number of groups does not divide the dimensions of the representation.
    """
    if config.beta == 0:
        return None
    if isinstance(config, FedDecorr):
        return lambda z: feddecorr(z, config.scale)
    if not isinstance(config, StructuredDeCov):
        return decov
    if dimensions % config.groups:
        raise UsageError(
            f"decorrelation.groups = {config.groups} does not divide the {dimensions} dimensions "
            "of the representation: give a divisor of it"
        )
    return lambda z: structured_decov(z, config.groups)
