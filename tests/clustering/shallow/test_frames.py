"""Subspaces beside scipy's transform, scikit-learn's PCA and plain matrices."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dctn
from sklearn.decomposition import PCA

from ccfcpp.clustering.shallow.frames import (
    Frame,
    from_half,
    half,
    low_frequencies,
    top_subspace,
)


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 7), st.integers(1, 7), st.integers(1, 8), st.integers(0, 99)
)
def test_low_frequencies_are_those_of_the_transform(
    channels: int, height: int, width: int, most: int, seed: int
) -> None:
    frame, images = low_frequencies((channels, height, width), most), random(seed, 4, channels)
    images = random(seed, 4, channels, height, width)
    transformed = dctn(images.numpy(), axes=(1, 2, 3), norm="ortho")[:, :, :most, :most]
    expected = transformed.reshape(4, -1)[:, 1:]
    np.testing.assert_allclose(frame.coordinates(images.flatten(1)), expected, atol=1e-12)
    # A brighter image has the same coordinates.
    np.testing.assert_allclose(frame.coordinates(images.flatten(1) + 3), expected, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.integers(0, 99))
def test_half_a_matrix_has_its_norm_and_is_all_of_it(size: int, seed: int) -> None:
    matrix = random(seed, size, size)
    matrix = matrix + matrix.T
    assert float(half(matrix).norm()) == pytest.approx(float(matrix.norm()))
    torch.testing.assert_close(from_half(half(matrix), size), matrix)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(0, 99))
def test_the_subspace_is_that_of_principal_components(most: int, seed: int) -> None:
    points = random(seed, 60, 6) * torch.arange(1, 7).double()
    origin = points.mean(dim=0)
    variances, axes = top_subspace((points - origin).T @ (points - origin) / 60, most)
    expected = PCA(most).fit(points.numpy())
    np.testing.assert_allclose(variances, expected.explained_variance_ * 59 / 60)
    projector, other = axes.T @ axes, expected.components_.T @ expected.components_
    np.testing.assert_allclose(projector, other, atol=1e-9)
    frame = Frame(origin, axes)
    there = frame.coordinates(points)
    torch.testing.assert_close(frame.coordinates(frame.places(there)), there)


def test_directions_within_the_noise_are_left_out() -> None:
    """Of 30 dimensions 3 stand out of symmetric noise, whose largest eigenvalue is about 1."""
    noise = random(0, 30, 30) / (2 * 30**0.5)
    noise = (noise + noise.T) / 2**0.5
    matrix = noise + torch.diag(torch.tensor([9.0, 8.0, 7.0] + 27 * [0.0]).double())
    variances, axes = top_subspace(matrix, 10)
    assert 3 <= len(axes) <= 6
    assert float(axes[:3, :3].square().sum()) == pytest.approx(3, abs=0.1)
    assert bool((variances >= 0).all())
    # Nothing but noise leaves two, so that there is a plane to cluster in.
    assert len(top_subspace(-torch.eye(5).double(), 4)[1]) == 2
