"""A run that goes on from a finished one whose clients are on other machines, with new ones."""

from dataclasses import replace
from pathlib import Path

from ccfcpp.clustering.preprocessing.phased import make_algorithm
from ccfcpp.clustering.warm_start import WarmStart
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.deployment.link.algorithms import clustering_problem
from ccfcpp.deployment.link.messages import new_token
from ccfcpp.deployment.link.run_spec import OWN_IMAGES
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.runs.environment import choose_device
from ccfcpp.runs.folder import RunFolder


def run_with_clients(path: Path, given: Tree, out: Path | None = None) -> Path:
    """Make the folder of a run that goes on from a finished one, for clients that are yet to come.

    Args:
        path: Folder of the finished run of ``ccfcpp serve``, of Fed-SCAN.
        given: Settings over those of the finished run, with ``clusters``.
        out: Folder of the new run; beside the finished one where it is None.

    Returns:
        The new folder, in which the run can be resumed from its start. Its enrolment has the
        finished run's clients; who else is on the roster joins as a latecomer.

    Raises:
        UsageError: There is no such run, it cannot be extended, the settings do not fit it, or the
            folder is taken.
    """
    folder = RunFolder(path)
    if not folder.deployment.is_file():
        raise UsageError(f"{path} holds no run of ccfcpp serve: give the folder of a finished one")
    if not folder.summary.is_file() or not folder.checkpoint.is_file():
        raise UsageError(f"the run in {path} is not finished: go on with it by --resume first")
    before = Enrolment.load(folder.deployment)
    if before.spec.command != "cluster":
        raise UsageError(f"the run in {path} is one of classification, which has no clusters")
    numbers = [member.id for member in before.members]
    later = WarmStart.of(folder, OWN_IMAGES, given, out, "with-more", numbers)
    config = later.config
    clusters = config.most_clusters(before.spec.samples, 0, before.spec.unit)
    spec = before.spec.model_copy(update={"clusters": clusters})
    enrolment = replace(before, run=new_token(), spec=spec, known=len(numbers), sessions=0)
    enrolment = enrolment.with_config(config)
    device = choose_device(config.device)
    algorithm = make_algorithm(clustering_problem(config, enrolment.spec, device))
    state = later.grown(algorithm, device, Randomness(config.seed))
    return later.begin(state, lambda whole: enrolment.save(whole.deployment))
