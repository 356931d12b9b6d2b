"""A page as a headless browser lays it out."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

_HARNESS = """<!DOCTYPE html>
<meta charset="utf-8">
<title>harness</title>
<iframe width="{width}" height="800" style="border: 0" srcdoc="{page}"></iframe>
<script>
onload = () => {{
  const inside = document.querySelector("iframe").contentDocument;
  const figures = [...inside.querySelectorAll("figure svg")].map((figure) => {{
    const box = figure.getBoundingClientRect();
    const texts = [...figure.querySelectorAll("text")].map((t) => t.getBoundingClientRect());
    return {{
      name: figure.closest("figure").id,
      width: box.width,
      height: box.height,
      shapes: figure.querySelectorAll("path, image, use").length,
      over: Math.max(0, ...texts.map((t) => Math.max(box.left - t.left, t.right - box.right))),
      letters: Math.min(...texts.map((t) => Math.min(t.height, t.width ? Infinity : 0))),
    }};
  }});
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = JSON.stringify({{
    width: inside.documentElement.scrollWidth,
    background: getComputedStyle(inside.body).backgroundColor,
    scripts: inside.scripts.length,
    figures,
  }});
  document.body.append(found);
}};
</script>
"""


def laid_out(page: Path, width: int, folder: Path, dark: bool = False) -> dict[str, Any]:
    """What a browser makes of a page in a frame of so many pixels, and what it complains about.

    Args:
        page: The page's file.
        width: Of the frame.
        folder: For the browser's own files; a new one for each call.
        dark: Whether the reader's system is dark.
    """
    folder.mkdir()
    harness = folder / "harness.html"
    content = html.escape(page.read_text(), quote=True)
    harness.write_text(_HARNESS.format(width=width, page=content))
    assert BROWSER is not None
    process = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            "--v=0", "--dump-dom", "--virtual-time-budget=5000", "--window-size=1600,1000",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--user-data-dir={folder / 'profile'}", harness.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="found">(.*?)</pre>', process.stdout, re.DOTALL)
    assert found, process.stderr
    complaints = [line for line in process.stderr.splitlines() if "CONSOLE" in line]
    measured: dict[str, Any] = json.loads(html.unescape(found[1]))
    return measured | {"complaints": complaints}
