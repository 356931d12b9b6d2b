"""How far the runs of a study are, live on a terminal or line by line."""

import io
from pathlib import Path

from rich.console import Console

from ccfcpp.cli.progress import watch_runs
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.studies.grids import PlannedRun
from ccfcpp.studies.study import Study


def study_of(path: Path, seeds: int) -> Study[ClusterConfig]:
    return Study(path, [PlannedRun({}, ClusterConfig(seed=seed)) for seed in range(seeds)])


def end(study: Study[ClusterConfig], number: int) -> None:
    folder = study.folder(study.runs[number])
    folder.path.mkdir(exist_ok=True)
    folder.summary.write_text("{}")


def test_without_a_terminal_each_run_that_ends_is_a_line(tmp_path: Path) -> None:
    study, out = study_of(tmp_path, 3), io.StringIO()
    end(study, 1)
    with watch_runs(study, Console(file=out, soft_wrap=True)) as look:
        look()
        header = f"3 runs, 1 of them finished: ccfc++; on digits; in {tmp_path}"
        assert " ".join(out.getvalue().split()) == header
        end(study, 0)
        look()
        look()
        end(study, 2)
        look()
    assert out.getvalue().splitlines()[-2:] == [
        "2 of 3 runs finished, about 0:00 min left: seed-0",
        "3 of 3 runs finished: seed-2",
    ]


def test_what_has_ended_is_shown_at_first_and_after_each_run(tmp_path: Path) -> None:
    study, calls = study_of(tmp_path, 2), []

    def finished() -> str:
        calls.append(sum(map(study.is_finished, study.runs)))
        return ""

    with watch_runs(study, Console(file=io.StringIO()), finished) as look:
        look()
        end(study, 0)
        look()
        look()
        end(study, 1)
        look()
    assert calls == [0, 1, 2]


def test_on_a_terminal_running_ones_are_shown_with_their_rounds(tmp_path: Path) -> None:
    study, out = study_of(tmp_path, 2), io.StringIO()
    end(study, 0)
    folder = study.folder(study.runs[1])
    folder.path.mkdir()
    folder.metrics.write_text("{}\n{}\n{}\n")
    with watch_runs(study, Console(file=out, force_terminal=True), lambda: "the table") as look:
        look()
    shown = out.getvalue()
    assert "1 of 2 runs finished" in shown
    assert "seed-1: 3 rounds" in shown
    assert "seed-0" not in shown
    assert "the table" in shown


def test_the_time_left_is_told_by_method(tmp_path: Path) -> None:
    methods = ["km", "km", "ccfc++", "ccfc++", "fcm"]
    runs = [
        PlannedRun({"method": method}, ClusterConfig(method=method, seed=seed))
        for seed, method in enumerate(methods)
    ]
    study, out = Study(tmp_path, runs), io.StringIO()
    with watch_runs(study, Console(file=out, soft_wrap=True), jobs=2) as look:
        for number, seconds in ((0, 10), (2, 300)):
            folder = study.folder(runs[number])
            folder.path.mkdir(parents=True)
            folder.summary.write_text(f'{{"seconds": {seconds}}}')
            look()
    assert [line.partition(": method")[0] for line in out.getvalue().splitlines()[1:]] == [
        "1 of 5 runs finished, about 0:05 min and an unknown time for ccfc++, fcm left",
        "2 of 5 runs finished, about 2:35 min and an unknown time for fcm left",
    ]
