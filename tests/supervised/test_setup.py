"""Training and test images, clients and network inputs of a configuration."""

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from ccfcpp.core.config_layers import merge, parse_assignments, read_yaml, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.presets import preset_file
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.autoaugment import draw_policies, render_policies
from ccfcpp.data.images import ImageData
from ccfcpp.data.training_augmentation import draw_crops, render_crops
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from supervised.augmentation import Augmenter, Normalisation
from supervised.classification import ClassificationRun, classification_run
from supervised.config import ClassifyConfig, EqualShare
from supervised.messages import LocalUpdate
from supervised.setup import partition_samples, train_test_indices


def config(*settings: str) -> ClassifyConfig:
    return validate(ClassifyConfig, parse_assignments(settings))


def draw_images(
    count: int, classes: int = 3, owners: int = 0, test: Tensor | None = None
) -> ImageData:
    generator = Randomness(0).generator("images")
    return ImageData(
        "drawn",
        torch.randint(256, (count, 3, 8, 8), generator=generator).to(torch.uint8),
        torch.arange(count) % classes,
        tuple(map(str, range(classes))),
        torch.arange(count) // classes % owners if owners else None,
        tuple(f"domain {number}" for number in range(owners)),
        test,
    )


# --- split ----------------------------------------------------------------------------------------


def test_the_publishers_split_is_kept() -> None:
    test = torch.arange(60) % 4 == 3
    train_index, test_index = train_test_indices(config(), draw_images(60, test=test))
    assert torch.equal(test_index, test.nonzero().flatten())
    assert torch.equal(train_index, (~test).nonzero().flatten())


@given(st.integers(30, 200), st.integers(1, 5), st.integers(0, 3), st.sampled_from([0.2, 0.5]))
def test_a_share_of_each_class_and_owner_is_held_out(
    count: int, classes: int, owners: int, share: float
) -> None:
    data = draw_images(count, classes, owners)
    train_index, test_index = train_test_indices(config(f"data.test_share={share}"), data)
    assert sorted([*train_index.tolist(), *test_index.tolist()]) == list(range(count))
    assert data.labels is not None
    groups = data.labels if data.owners is None else data.labels + classes * data.owners
    for group in groups.unique():  # type: ignore[no-untyped-call]
        held = int((groups[test_index] == group).sum())
        assert held == round(share * int((groups == group).sum()))


def test_every_seed_has_the_same_test_images() -> None:
    data = draw_images(90)
    first, second = (train_test_indices(config(f"seed={seed}"), data)[1] for seed in (0, 1))
    assert torch.equal(first, second)


def test_a_part_of_the_images_is_drawn() -> None:
    data = draw_images(100)
    train_index, test_index = train_test_indices(
        config("data.train_images=30", "data.test_images=7"), data
    )
    assert (len(train_index), len(test_index)) == (30, 7)
    assert train_index.tolist() == sorted(train_index.tolist())
    whole, _ = train_test_indices(config(), data)
    assert set(train_index.tolist()) < set(whole.tolist())


def test_without_test_images_nothing_can_be_said() -> None:
    data = draw_images(20, test=torch.zeros(20, dtype=torch.bool))
    with pytest.raises(UsageError, match="has no test images"):
        train_test_indices(config(), data)


# --- clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dirichlet", "iid", "classes"])
def test_clients_hold_training_images_only(kind: str) -> None:
    data, chosen = draw_images(200, 4), config(f"partition.kind={kind}", "partition.clients=4")
    train_index, test_index = train_test_indices(chosen, data)
    parts = partition_samples(chosen, data, train_index, Randomness(0))
    held = torch.cat(parts).tolist()
    assert sorted(held) == train_index.tolist()
    assert not set(held) & set(test_index.tolist())


def test_domains_are_clients_and_test_sets() -> None:
    data = draw_images(120, 3, owners=4)
    settings = ("partition.kind=domain", "model.widths=[4]", "training.rounds=1")
    experiment = classification_run(config(*settings), data)
    assert [client.name for client in experiment.clients] == list(data.owner_names)
    assert [tested.name for tested in experiment.evaluator.test_sets] == list(data.owner_names)
    assert data.owners is not None
    for number, tested in enumerate(experiment.evaluator.test_sets):
        assert set(data.owners[tested.index].tolist()) == {number}
        assert set(data.owners[experiment.parts[number]].tolist()) == {number}


@given(st.integers(60, 150), st.sampled_from([0.29, 0.3, 0.5, 0.58, 1.0]), st.integers(0, 9))
def test_equal_clients_are_a_share_of_the_smallest_one(count: int, share: float, seed: int) -> None:
    data = draw_images(count, 3, owners=4)
    plain = config("partition.kind=domain", f"seed={seed}")
    equal = config("partition.kind=domain", f"seed={seed}", f"partition.equal_share={share}")
    train, _ = train_test_indices(plain, data)
    whole = partition_samples(plain, data, train, Randomness(seed))
    parts = partition_samples(equal, data, train, Randomness(seed))
    assert {len(part) for part in parts} == {int(Fraction(str(share)) * min(map(len, whole)))}
    assert all(set(p.tolist()) <= set(w.tolist()) for p, w in zip(parts, whole, strict=True))
    again = partition_samples(equal, data, train, Randomness(seed + 1))
    assert all(map(torch.equal, parts, again))


def test_a_share_that_leaves_a_client_nothing_is_refused() -> None:
    data, chosen = draw_images(24, 3, owners=4), config("partition.equal_share=0.1")
    with pytest.raises(UsageError, match=r"equal_share = 0\.1 leaves nothing of the smallest"):
        partition_samples(
            chosen.model_copy(update={"partition": _domains_of(chosen)}),
            data,
            torch.arange(24),
            Randomness(0),
        )


def test_clients_of_whom_none_has_a_batch_are_refused() -> None:
    chosen = config("partition.kind=iid", "partition.clients=12")
    with pytest.raises(UsageError, match=r"^clients = 12 leave no client 2 of the 12 training im"):
        partition_samples(chosen, draw_images(12), torch.arange(12), Randomness(0))
    parts = partition_samples(chosen, draw_images(13), torch.arange(13), Randomness(0))
    assert max(map(len, parts)) == 2


def _domains_of(chosen: ClassifyConfig) -> EqualShare:
    return chosen.partition.model_copy(update={"kind": "domain"})


SIZES = {"amazon": (10, 7), "caltech": (9, 4), "dslr": (6, 2), "webcam": (8, 3)}
"""Numbers of images for training and for testing."""


@pytest.fixture
def listed_domains(tmp_path: Path) -> Path:
    """A folder such as Office-Caltech10's, with FedBN's lists as text."""
    for domain, sizes in SIZES.items():
        number = 0
        for which, size in zip(("train", "test"), sizes, strict=True):
            lines = []
            for _ in range(size):
                name = f"{domain}/{'ab'[number % 2]}/{number:02}.png"
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (8, 8), number).save(tmp_path / name)
                lines.append(f"{name} {number % 2}\n")
                number += 1
            (tmp_path / f"{domain}_{which}.txt").write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize(("preset", "share"), [("office-caltech10", 0.5), ("domainnet", 0.05)])
def test_the_presets_of_domains_have_equal_small_clients(preset: str, share: float) -> None:
    settings = read_yaml(preset_file(f"classify/{preset}"))
    chosen = validate(ClassifyConfig, settings)
    assert (chosen.partition.kind, chosen.partition.equal_share) == ("domain", share)


def test_domains_follow_their_lists_and_count_alike(listed_domains: Path) -> None:
    """Half of the smallest domain's six training images each, all listed test images, 1/4 each."""
    settings = read_yaml(preset_file("classify/office-caltech10"))
    tiny = ("model.name=small", "model.widths=[4]", "data.image_size=8", "training.rounds=1")
    values = parse_assignments((f"dataset={listed_domains}", *tiny))
    experiment = classification_run(validate(ClassifyConfig, merge(settings, values)))
    assert [len(client) for client in experiment.clients] == [3, 3, 3, 3]
    assert [len(tested.index) for tested in experiment.evaluator.test_sets] == [
        n for _, n in SIZES.values()
    ]
    state = experiment.algorithm.initial_state(Randomness(0))
    locals_ = [
        {name: entry * (number + 1) for name, entry in state.model.items()} for number in range(4)
    ]
    updates = [
        LocalUpdate(model, len(c), 1) for model, c in zip(locals_, experiment.clients, strict=True)
    ]
    after, _ = experiment.algorithm.aggregate(state, updates, Randomness(0))
    for name, entry in state.model.items():
        if entry.is_floating_point():
            torch.testing.assert_close(after.model[name], entry * 2.5)


def test_a_disconnected_domain_is_tested_by_the_global_model_alone() -> None:
    data = draw_images(120, 3, owners=4)
    settings = (
        "partition.kind=domain", "model.widths=[4]", "availability.disconnection_rate=0.5",
    )  # fmt: skip
    for method, tested in (("fedavg", 4), ("fedbn", 2)):
        experiment = classification_run(config(*settings, f"method={method}"), data)
        assert len(experiment.clients) == 2
        assert len(experiment.evaluator.test_sets) == tested


def test_without_a_test_image_for_anybody_nothing_can_be_said() -> None:
    """One of the two domains is disconnected, and one of them has the only test image."""
    data = draw_images(60, 3, owners=2, test=torch.arange(60) == 0)
    settings = ("partition.kind=domain", "method=fedbn", "model.widths=[4]")

    def make(seed: int) -> ClassificationRun:
        absent = "availability.disconnection_rate=0.5"
        return classification_run(config(*settings, absent, f"seed={seed}"), data)

    with pytest.raises(UsageError, match="no connected client's domain in drawn has a test image"):
        make(seed=_seed_that_leaves(1))
    assert [tested.client for tested in make(seed=_seed_that_leaves(0)).evaluator.test_sets] == [0]


def _seed_that_leaves(client: int) -> int:
    availability = Availability(disconnection_rate=0.5)
    return next(
        seed for seed in range(99) if availability.connected(range(2), Randomness(seed)) == [client]
    )


def test_classes_may_be_named_by_numbers() -> None:
    assert config("data.classes=[0,1]").data.classes == ("0", "1")


def test_a_number_of_clients_that_is_not_that_of_the_domains_is_refused() -> None:
    data, chosen = (
        draw_images(60, 3, owners=2),
        config("partition.kind=domain", "partition.clients=3"),
    )
    with pytest.raises(UsageError, match="clients = 3 does not fit the 2 domains"):
        partition_samples(chosen, data, torch.arange(60), Randomness(0))


# --- what networks see ----------------------------------------------------------------------------


CPU = torch.device("cpu")


def client_of(size: int, number: int = 0) -> Client:
    return Client(number, str(number), draw_images(size).images)


def test_augmentation_is_crop_then_policy_then_scale() -> None:
    chosen = config(
        "augmentation.crop_padding=2", "augmentation.flip=true", "augmentation.autoaugment=true",
        "data.mean=[0.1,0.2,0.3]", "data.std=[0.5,0.6,0.7]",
    )  # fmt: skip
    client, own = client_of(8), Randomness(4, 2, 3)
    augmenter = Augmenter(chosen, CPU)
    images, changes = augmenter.draw(client, own, epoch=1)
    index = torch.tensor([7, 0, 5, 5])
    found = augmenter.render(images[index], changes, index)
    crops = draw_crops(len(client), 2, 0.5, own.generator("crops 1"))
    policies = draw_policies(len(client), own.generator("policies 1"))
    rendered = render_policies(render_crops(client.images, crops), policies)
    expected = rendered[index].float() / 255
    for channel, (mean, std) in enumerate(((0.1, 0.5), (0.2, 0.6), (0.3, 0.7))):
        torch.testing.assert_close(found[:, channel], (expected[:, channel] - mean) / std)


def test_without_a_policy_batches_are_cropped_one_by_one() -> None:
    client, own = client_of(6), Randomness(0, 0, 1)
    augmenter = Augmenter(config("augmentation.crop_padding=2"), CPU)
    images, changes = augmenter.draw(client, own, 0)
    assert images is client.images
    index = torch.tensor([4, 1])
    crops = draw_crops(6, 2, 0.0, own.generator("crops 0"))
    expected = render_crops(client.images, crops)[index].float() / 255
    torch.testing.assert_close(augmenter.render(images[index], changes, index), expected)


def test_each_epoch_and_client_has_draws_of_its_own() -> None:
    chosen = config("augmentation.rotation=30", "augmentation.flip=true")
    augmenter, client = Augmenter(chosen, CPU), client_of(4)

    def drawn(source: Randomness, epoch: int) -> Tensor:
        _, changes = augmenter.draw(client, source, epoch)
        assert changes.rotations is not None
        return changes.rotations.transforms

    first = drawn(Randomness(0, 1, 0), 0)
    assert torch.equal(first, drawn(Randomness(0, 1, 0), 0))
    for other in (drawn(Randomness(0, 1, 0), 1), drawn(Randomness(0, 1, 1), 0)):
        assert not torch.equal(first, other)


def test_without_augmentation_images_come_as_they_are() -> None:
    augmenter, client = Augmenter(config(), CPU), client_of(4)
    images, changes = augmenter.draw(client, Randomness(0, 0, 0), 0)
    found = augmenter.render(images, changes, torch.arange(4))
    torch.testing.assert_close(found, client.images.float() / 255)
    torch.testing.assert_close(Normalisation(config().data, CPU)(found), found)


@pytest.mark.parametrize("rotation", [0.0, 30.0])
def test_rotation_stays_within_its_range(rotation: float) -> None:
    augmenter = Augmenter(config(f"augmentation.rotation={rotation}"), CPU)
    _, changes = augmenter.draw(client_of(300), Randomness(0, 0, 0), 0)
    if rotation == 0:
        assert changes.rotations is None
        return
    assert changes.rotations is not None
    matrices = changes.rotations.transforms
    angles = torch.rad2deg(torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0]))
    assert 28 < float(angles.abs().max()) <= 30.001
    torch.testing.assert_close(matrices[:, :, 2], torch.zeros(300, 2))
    assert not changes.rotations.sigmas.any()
