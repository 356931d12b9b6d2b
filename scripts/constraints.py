"""Pin the packages of an installation by hashes: ``python -m scripts.constraints --help``.

The constraints hold for this platform and version of Python. With them, ``pip install
--require-hashes`` accepts no other files, whatever an index serves.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import typer


def pip_report(words: list[str]) -> Any:
    """Return pip's installation report for these arguments; nothing is installed.

    Raises:
        typer.BadParameter: pip fails.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    asked = [*command, "--quiet", "--report", "-", *words]
    done = subprocess.run(asked, stdout=subprocess.PIPE, check=False)  # noqa: S603 - the user's words
    if done.returncode:
        raise typer.BadParameter(f"pip refuses {' '.join(words)}: see above")
    return json.loads(done.stdout)


def constraints(report: Any) -> list[str]:
    """Return a constraint, name==version and hash, for each package of a report that is no file."""
    return sorted(
        f"{each['metadata']['name']}=={each['metadata']['version']} --hash=sha256:{_hash(each)}"
        for each in report["install"]
        if not each["is_direct"]
    )


def _hash(package: Any) -> str:
    """Return the SHA-256 of a package's file, computed if pip's report has none."""
    info = package["download_info"]
    known = info.get("archive_info", {}).get("hashes", {}).get("sha256")
    if known:
        return str(known)
    place = urlsplit(info["url"])
    if place.scheme != "file":
        raise typer.BadParameter(f"{package['metadata']['name']} comes from no file with a hash")
    return hashlib.sha256(Path(unquote(place.path)).read_bytes()).hexdigest()


def main(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="WHEEL[EXTRAS] [OPTION]...",
            help="What is installed, and options of pip, such as --find-links, after --.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file, for ccfcpp keys kit --constraints.")] = Path(
        "constraints.txt"
    ),
) -> None:
    """Write name==version --hash=sha256:… for all that an installation needs besides the wheel."""
    lines = constraints(pip_report(words))
    out.write_text("".join(f"{line}\n" for line in lines))
    typer.echo(f"{out}: {len(lines)} packages")


if __name__ == "__main__":
    typer.run(main)
