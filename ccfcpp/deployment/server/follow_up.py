"""Continuation of a finished deployed run with new clients."""

from dataclasses import replace
from pathlib import Path

from ccfcpp.clustering.follow_up import FinishedRun
from ccfcpp.clustering.preprocessing.make_algorithm import make_algorithm
from ccfcpp.core.config import Tree
from ccfcpp.deployment.link.algorithms import clustering_problem
from ccfcpp.deployment.link.messages import new_token
from ccfcpp.deployment.link.run_spec import OWN_IMAGES
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.runs.environment import choose_device


def run_with_clients(path: Path, given: Tree, out: Path | None = None) -> Path:
    """Create the folder of a run that continues a finished one with new clients.

    Args:
        path: Folder of a finished run of Fed-SCAN by ``ccfcpp serve``.
        given: Nested settings that replace those of the finished run; ``clusters`` is required.
        out: Folder of the new run; None: a new one beside the finished run.

    Returns:
        The new folder, from which the run can be resumed. At first it has the finished run's
        clients; other clients on the roster join later.

    Raises:
        UsageError: There is no such run, it cannot be extended, the settings do not fit it, or the
            folder exists already.
    """
    finished = FinishedRun.open(path)
    before = Enrolment.load(finished.folder.deployment)
    finished = replace(finished, clients=[member.id for member in before.members])
    config = finished.config_with_newcomers(OWN_IMAGES, given)
    new = finished.new_folder(out, "with-more")
    clusters = config.most_clusters(before.spec.samples, 0, before.spec.unit)
    spec = before.spec.model_copy(update={"clusters": clusters})
    enrolment = replace(
        before, run=new_token(), spec=spec, known=len(before.members), sessions=0
    ).with_config(config)
    problem = clustering_problem(config, enrolment.spec, choose_device(config.device))
    return finished.begin_with_model(
        new, config, make_algorithm(problem), lambda folder: enrolment.save(folder.deployment)
    )
