"""A real data set of texts: what Debian's packages say of themselves, labelled by their section.

    python scripts/debian_texts.py debian.csv --texts 24000 --sections 10

It needs ``apt-cache`` with lists of packages, which Debian has after ``apt-get update``, and writes
a CSV file with the columns ``text``, a package's one-line description, and ``section``. The most
frequent sections are taken, each description once, and of these a part by a fixed seed.
"""

import argparse
import csv
import random
import re
import subprocess
from collections import Counter
from pathlib import Path

_FIELD = re.compile(r"^(Description|Section): (.+)$", re.MULTILINE)


def described() -> dict[str, str]:
    """Return the section of each description; that of the first package with it."""
    command = ["apt-cache", "dumpavail"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    packages = (dict(_FIELD.findall(package)) for package in listed.split("\n\n"))
    found: dict[str, str] = {}
    for fields in packages:
        if fields.keys() >= {"Description", "Section"}:
            found.setdefault(fields["Description"], fields["Section"].rpartition("/")[2])
    return found


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--texts", type=int, default=24_000)
    parser.add_argument("--sections", type=int, default=10)
    asked = parser.parse_args()
    found = described()
    common = {name for name, _ in Counter(found.values()).most_common(asked.sections)}
    rows = sorted(row for row in found.items() if row[1] in common)
    chosen = random.Random(0).sample(rows, min(asked.texts, len(rows)))  # noqa: S311 - no secret
    with asked.out.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "section"), *sorted(chosen)])
    print(f"{asked.out}: {Counter(section for _, section in chosen).most_common()}")


if __name__ == "__main__":
    main()
