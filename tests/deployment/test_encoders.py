"""Photos through an encoder on other machines: the same bits as in one process; other encoders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ccfcpp.cli.serve import with_suited_settings
from ccfcpp.clustering.api import CLUSTERING
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config import RunConfig
from ccfcpp.core.config_layers import merge, read_yaml, unflatten, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.permissions import KINDS
from ccfcpp.data.vectors import VectorData
from ccfcpp.deployment.client.run import load_data
from ccfcpp.deployment.client.worker import Worker
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.link.server_status import LEFT_OUT
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.enrolling import enrol
from ccfcpp.deployment.server.enrolment import first_spec
from ccfcpp.deployment.server.run import DeployedRun
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.pipeline import Opening
from tests.support.deployment import AT_ONCE, Grid, Told, trusting
from tests.support.encoders import NETWORK, encoder_of, weights_file, write_photos

ASKED = {"method": "fed-km", "clusters": 3, "seed": 2, "vectors.scale": "none", "device": "cpu"}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CCFCPP_CACHE", str(tmp_path / "cache"))
    for seed in (0, 1):
        weights_file(tmp_path, seed)
    write_photos(tmp_path / "photos")
    return tmp_path / "photos"


def opening(**more: object) -> Opening[ClusterConfig]:
    """A run whose server names the encoder, and has no weights of it."""
    asked = ASKED | {"dataset": "the clients' own images", "data.encoder": f"torchvision:{NETWORK}"}
    return CLUSTERING.open([unflatten(asked | more)], Path("runs/none"), deployed=True)


def grid_of(photos: Path, others: dict[str, str | None] | None = None) -> Grid:
    """A worker for each client, whose owner says which encoder it has; some have another."""
    usual = encoder_of(photos.parent / "weights-0.safetensors")
    names = dict.fromkeys(("east", "north", "west"), usual) | (others or {})

    def load(client: str, encoder: str | None) -> Any:
        return lambda spec: load_data(spec, str(photos / client), None, encoder)

    place = photos.parent / "clients"
    rules = trusting(allow=KINDS, smallest_count=0)
    say = print
    return Grid(
        {name: Worker(load(name, own), place / name, rules, say=say) for name, own in names.items()}
    )


def test_three_clients_are_the_same_as_one_process(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, grid = opening(), grid_of(photos)
    channel, names = Channel(grid, AT_ONCE, told := Told()), list(grid.workers)
    enrolment = enrol(channel, begun.config, names, None)
    begun = with_suited_settings(begun, enrolment.spec)
    enrolment = enrolment.with_config(begun.config)
    folder = RunFolder.create(tmp_path / "deployed", begun.config)
    there = DeployedRun(begun.config, enrolment, channel)
    there.run(folder)
    assert told.lines == ["east: 12 vectors", "north: 12 vectors", "west: 12 vectors"]

    # One process embeds everything again, in other batches.
    monkeypatch.setenv("CCFCPP_CACHE", str(tmp_path / "another cache"))
    encoder = encoder_of(tmp_path / "weights-0.safetensors")
    own = {"dataset": str(photos), "partition": {"kind": "folders"}, "data": {"encoder": encoder}}
    here = clustering_run(validate(ClusterConfig, merge(begun.config.model_dump(mode="json"), own)))
    assert here.evaluator.config.data.encoder_hash == begun.config.data.encoder_hash is not None
    here.run(RunFolder.create(tmp_path / "alone", here.evaluator.config))
    deployed, alone = (load_file(tmp_path / n / "model.safetensors") for n in ("deployed", "alone"))
    assert deployed.keys() == alone.keys()
    # Clients embed on a GPU where they have one, and the one process on the processor, as asked.
    share = 1e-4 if torch.cuda.is_available() else 0.0
    for name, tensor in deployed.items():
        slack = share * float(tensor.abs().max())
        torch.testing.assert_close(alone[name], tensor, rtol=0, atol=slack)

    # A client has the model, the names of its photos, and pictures of them, to look at.
    east = tmp_path / "clients" / "east"
    assert (east / "model.safetensors").is_file()
    # No name from the server is kept, by which something could be loaded later.
    assert read_yaml(east / "config.yaml")["data"]["encoder"] is None
    assert (east / "clusters.csv").read_text().startswith("file,cluster")
    assert "blue/0.png" in (east / "clusters.csv").read_text()
    assert (east / "pictures.npz").is_file()


def enrolled(config: RunConfig, grid: Grid) -> list[str]:
    """Who is left out, and why."""
    names, told = list(grid.workers), Told()
    enrol(Channel(grid, AT_ONCE, told), config, names, len(names) - 1)
    return [line for line in told.lines if LEFT_OUT in line]


def test_a_client_with_another_encoder_is_left_out_in_one_line(photos: Path) -> None:
    other = encoder_of(photos.parent / "weights-1.safetensors")
    (line,) = enrolled(opening().config, grid_of(photos, {"north": other}))
    assert line.startswith(f"north: {LEFT_OUT}: its vectors are of an encoder with content hash")
    assert line.endswith("all need the same")


def test_a_server_that_knows_the_content_is_refused_by_other_clients(photos: Path) -> None:
    spec = first_spec(opening().config)
    usual = encoder_of(photos.parent / "weights-0.safetensors")
    first = load_data(spec, str(photos / "east"), None, usual)
    assert isinstance(first, VectorData)
    config = opening(**{"data.encoder_hash": first.encoder}).config
    other = encoder_of(photos.parent / "weights-1.safetensors")
    (line,) = enrolled(config, grid_of(photos, {"north": other}))
    assert "and that of the run is" in line


def test_no_server_makes_a_client_load_an_encoder(photos: Path) -> None:
    spec = first_spec(opening().config)
    with pytest.raises(UsageError, match=r"the run is on vectors of torchvision.*give --encoder"):
        load_data(spec, str(photos / "east"))
    with pytest.raises(UsageError, match="and --encoder is torchvision:resnet18: give the same"):
        load_data(spec, str(photos / "east"), None, "torchvision:resnet18")


def test_paths_of_the_server_do_not_travel() -> None:
    config = opening(**{"data.encoder": "torchvision:resnet18@/srv/secret.safetensors"}).config
    spec: RunSpec = first_spec(config)
    assert spec.config["data"]["encoder"] == "torchvision:resnet18"


def test_a_folder_called_as_a_data_set_is_a_folder(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but it is read, and its folders are classes whatever the server says of clients."""
    (photos / "east").rename(photos / "digits")
    monkeypatch.chdir(photos)
    usual = encoder_of(photos.parent / "weights-0.safetensors")
    tree = merge(
        opening().config.model_dump(mode="json"),
        {"data": {"root": "/srv"}, "partition": {"kind": "folders"}},
    )
    spec = RunSpec.model_validate({"command": "cluster", "config": tree})
    found = load_data(spec, "digits", None, usual)
    assert len(found) == 12
    assert (found.classes, found.owners) == (("blue", "green", "red"), None)
