"""The units of systemd and the container's file, as far as they can be tried here."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command import ccfcpp
from tests.support.pages import DOCS

SERVICES = DOCS / "services"
UNITS = "ccfcpp-serve.service", "ccfcpp-join.service"
PROGRAM = "/opt/ccfcpp/bin/ccfcpp"


def service(unit: str) -> dict[str, str]:
    """Settings of a unit's section, of which each has one."""
    found = configparser.RawConfigParser(strict=True)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(SERVICES / unit)
    return dict(found["Service"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_the_units(unit: str, tmp_path: Path) -> None:
    program = tmp_path / "ccfcpp"
    program.touch(mode=0o755)
    text = (SERVICES / unit).read_text().replace(PROGRAM, str(program))
    here = tmp_path / unit
    here.write_text(re.sub(r"^(User|Group)=.*$", "", text, flags=re.MULTILINE))
    process = subprocess.run(
        [str(shutil.which("systemd-analyze")), "verify", here],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("begun", [False, True])
def test_the_server_goes_on_with_a_run_that_has_begun(begun: bool, tmp_path: Path) -> None:
    """The unit's own line, with a program that tells its words."""
    program = tmp_path / "ccfcpp"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    line = service("ccfcpp-serve.service")["ExecStart"].replace("$$", "$")
    words = shlex.split(line.replace(PROGRAM, str(program)))
    if begun:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.yaml").touch()
    environment = os.environ | {"LISTEN": "0.0.0.0:9092"}
    process = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    settings = "--resume" if begun else "--config run.yaml"
    assert process.stdout == f"serve --listen 0.0.0.0:9092 --out run {settings}\n"


def test_the_commands_have_the_options_that_units_and_container_give() -> None:
    given = " ".join(path.read_text() for path in sorted(SERVICES.iterdir()))
    options = {"serve": {"--listen", "--out", "--resume", "--config"}}
    options["join"] = {"--server", "--key", "--authority", "--data"}
    for command, names in options.items():
        shown = ccfcpp(command, "--help").stdout
        assert all(name in shown and name in given for name in names)


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_refused_is_not_tried_again(unit: str) -> None:
    settings = service(unit)
    assert settings["Restart"] == "on-failure"
    assert settings["RestartPreventExitStatus"] == "2"
    assert settings["SuccessExitStatus"] == "130"
