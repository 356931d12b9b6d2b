"""Write the Markdown pages of the documentation's site into ``build/docs``, for MkDocs.

They are those of ``docs/`` and of the repository's top folder, and references generated from the
code: of settings, commands and public names.

    python -m scripts.site && mkdocs build --strict
"""

import contextlib
import io
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import typer

import ccfcpp
import ccfcpp.plugin
import supervised
from ccfcpp.cli.app import app
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import RunConfig, Section, fields_of
from ccfcpp.core.errors import in_file
from ccfcpp.core.settings_reference import KeyDescription, describe_keys
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig

ROOT = Path(__file__).parents[1]
TOP = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "licence.md",
}
"""Maps files at the top of the repository to their names in the site."""
_LINK = re.compile(r"(!?)\[([^][]*)\]\(([^)#:]+)(#[^)]*)?\)")
_TYPES = {"N": "integer", "NUMBER": "number", "": "true or false", "NAME": "text"}


def write_site(folder: Path) -> None:
    """Write all pages into ``folder``, whose content is deleted first."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.md", "example"))
    pages = {path: path.name for path in (ROOT / "docs").glob("*.md")}
    pages |= {ROOT / name: page for name, page in TOP.items()}
    for path, page in pages.items():
        (folder / page).write_text(convert_page(path, pages))
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        # MkDocs resolves links in Markdown pages only, not in notebooks.
        text = re.sub(r"(\]\([^)]+)\.md\)", r"\1.html)", notebook.read_text())
        (folder / "notebooks" / notebook.name).write_text(text)
    references = {"settings": settings_page(), "commands": commands_page(), "python": python_page()}
    (folder / "reference").mkdir()
    for name, text in references.items():
        (folder / "reference" / f"{name}.md").write_text(text)


def convert_page(path: Path, pages: Mapping[Path, str]) -> str:
    """Return the text of a page, with links and lists adapted to the site.

    ``pages`` maps all files to their names in the site. A link to any other file is replaced by its
    text.

    Raises:
        FileNotFoundError: The page links to a file that does not exist.
    """

    def adapt(match: re.Match[str]) -> str:
        picture, words, target, anchor = match.groups(default="")
        to = (path.parent / target).resolve()
        if not to.exists():
            raise FileNotFoundError(f"{path.name} links to {target}, which is not there")
        if to in pages:
            return f"{picture}[{words}]({pages[to]}{anchor})"
        if to.is_file() and to.is_relative_to(ROOT / "docs"):
            return f"{picture}[{words}]({to.relative_to(ROOT / 'docs')})"
        return words

    text = _LINK.sub(adapt, path.read_text())
    if path.name == "LICENSE":
        return f"# Licence\n\n{text}"
    # MkDocs reads a list as part of the text before it, unless a blank line separates them.
    return re.sub(r"^(?!- |  |\||\d+\. )(\S.*)\n(?=- )", r"\1\n\n", text, flags=re.MULTILINE)


def settings_page() -> str:
    """Return the page with all settings of runs, systems and methods."""
    parts = [
        "# Settings",
        "Every setting of a run, made from the code. A configuration file has them as nested keys, "
        "`--set KEY=VALUE` and Python take the dotted key, and some have [flags](commands.md). "
        "Defaults are those of the fields; a preset of a data set may hold others "
        "(`ccfcpp presets`), and `config.yaml` in a run's folder has what held.",
        "## Clustering: every system",
        _settings_table(ClusterConfig),
        *_sections("Clustering", METHODS),
        "## Classification: every method",
        _settings_table(ClassifyConfig),
        *_sections("Classification", CLASSIFIERS),
    ]
    return "\n\n".join(parts) + "\n"


def _sections(title: str, methods: Mapping[str, Any]) -> Iterator[str]:
    """Yield heading, methods and table of each section that only some methods have."""
    titles: dict[str, list[str]] = {}
    kinds: dict[str, list[type[Section]]] = {}
    for method in methods.values():
        for name, kind in method.sections.items():
            titles.setdefault(name, []).append(method.title)
            if kind not in kinds.setdefault(name, []):
                kinds[name].append(kind)
    for name in kinds:
        yield f"### {title}: {name}"
        yield f"Of {', '.join(titles[name])}."
        yield _settings_table(*kinds[name], prefix=f"{name}.")


def _settings_table(*kinds: type[Section], prefix: str = "") -> str:
    runs = [kind for kind in kinds if issubclass(kind, RunConfig)]
    methods = ", ".join(name for kind in runs for name in kind.methods())
    annotations = {
        key: field.annotation for kind in kinds for key, field in fields_of(kind).items()
    }
    rows = [
        (
            f"`{prefix}{key}`",
            _type(setting, annotations[key], methods if key == "method" else setting.values),
            f"`{in_file(setting.default)}`",
            setting.description,
        )
        for key, setting in describe_keys(*kinds).items()
    ]
    return _table(("key", "type and range", "default", "meaning"), rows)


def _type(setting: KeyDescription, annotation: object, values: str) -> str:
    """Describe the type of a setting, and the values that it takes."""
    words = setting.placeholder.split("|")
    known = list(dict.fromkeys(_TYPES.get(word, "text") for word in words))
    origins = {get_origin(each) for each in (annotation, *get_args(annotation))}
    kind = " or ".join(known)
    kind = f"list of {kind}s" if tuple in origins else kind
    return f"{kind}: {values}" if values else kind


def commands_page() -> str:
    """Return the page with all commands, their arguments and options."""
    parts = [
        "# Commands",
        "Made from the commands themselves; `ccfcpp COMMAND --help` shows the same.",
    ]
    root: Any = typer.main.get_command(app)
    for words, command in _commands("ccfcpp", root):
        context = typer.Context(command, info_name=words)
        with contextlib.redirect_stdout(io.StringIO()):
            command.get_help(context)  # This fills in the help of the options.
        usage = " ".join(piece for piece in command.collect_usage_pieces(context))
        parts += [f"## {words}", command.help or "", f"```\n{words} {usage}\n```"]
        options = [each for each in command.params if each.name != "help"]
        if options:
            rows = [(_spelled(each), _meaning(each)) for each in options]
            parts.append(_table(("option", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def _commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    if not below:
        yield words, command
    for name, one in below.items():
        yield from _commands(f"{words} {name}", one)


def _spelled(option: Any) -> str:
    if option.param_type_name == "argument":
        return f"`{option.metavar or option.human_readable_name}`"
    value = "" if option.is_flag or not option.metavar else f" {option.metavar}"
    return f"`{', '.join(option.opts)}{value}`"


def _meaning(option: Any) -> str:
    said, default = getattr(option, "help", "") or "", option.default
    if "default" in said or default in (None, False, [], ()) or not option.show_default:
        return said
    return f"{said} (default: {in_file(getattr(default, 'value', default))})"


def python_page() -> str:
    """Return the page with all public names, whose docstrings mkdocstrings inserts."""
    parts = ["# Python", "Names that stay. Other modules may change without notice."]
    for title, module in (
        ("ccfcpp", ccfcpp),
        ("supervised", supervised),
        ("ccfcpp.plugin", ccfcpp.plugin),
    ):
        parts.append(f"## {title}")
        parts.append((module.__doc__ or "").replace("``", "`"))
        names = [name for name in module.__all__ if not name.startswith("__")]
        parts += [f"::: {title}.{name}\n    options:\n      heading_level: 3" for name in names]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    os.chdir(ROOT)
    write_site(ROOT / "build" / "docs")
