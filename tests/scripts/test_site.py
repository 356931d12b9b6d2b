"""The site's pages: references that are made from the code, and links that lead somewhere."""

import re
from pathlib import Path

import pytest

import ccfcpp
import ccfcpp.plugin
import supervised
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import fields_of
from scripts.site import convert_page, write_site
from tests.support.pages import DOCS


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write_site(folder)
    return folder


def rows(page: Path) -> list[list[str]]:
    lines = page.read_text().splitlines()
    return [re.split(r"(?<!\\) \| ", line[2:-2]) for line in lines if line.startswith("| `")]


def test_each_setting_stands_with_type_default_and_meaning(site: Path) -> None:
    found = rows(site / "reference" / "settings.md")
    for key, kind, default, meaning in found:
        assert all((key, kind, default.strip("`"), meaning)), key
    keys = {row[0].strip("`") for row in found}
    assert fields_of(ClusterConfig).keys() <= keys
    assert {"scan.steps", "mixture.covariance", "moon.mu"} <= keys
    by_key = {row[0].strip("`"): row for row in found}
    assert by_key["partition.p"][1:3] == ["number: 0 to 1", "`0`"]
    assert by_key["scan.widths"][1].startswith("list of integers")
    assert "fedavg" in by_key["method"][1]


def test_each_command_stands_with_its_options(site: Path) -> None:
    page = site / "reference" / "commands.md"
    text = page.read_text()
    for command in ("cluster", "serve", "join", "keys client"):
        assert f"\n## ccfcpp {command}\n" in text
    assert all(len(row) == 2 and row[1] for row in rows(page))


def test_each_public_name_stands(site: Path) -> None:
    text = (site / "reference" / "python.md").read_text()
    for module in (ccfcpp, supervised, ccfcpp.plugin):
        for name in set(module.__all__) - {"__version__"}:
            assert f"::: {module.__name__}.{name}\n" in text


def test_each_page_is_in_the_navigation(site: Path) -> None:
    there = {path.relative_to(site).as_posix() for path in site.rglob("*.*")}
    pages = {name for name in there if name.endswith((".md", ".ipynb"))}
    listed = (DOCS.parent / "mkdocs.yml").read_text()
    assert pages == set(re.findall(r": (\S+\.(?:md|ipynb))$", listed, re.MULTILINE))


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[there](page.md) and [here](away.md#x)")
    with pytest.raises(FileNotFoundError, match=r"page\.md links to away\.md"):
        convert_page(page, {page: "page.md"})


def test_links_and_lists_are_as_the_site_needs_them(site: Path) -> None:
    assert "(systems.md)" in (site / "index.md").read_text()
    assert "](index.md#start)" in (site / "tutorial.md").read_text()
    assert "(../configs" not in (site / "usage.md").read_text()
    assert "**In scope**\n\n- " in (site / "security.md").read_text()
