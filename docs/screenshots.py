"""Makes the pictures in docs/screenshots: a run with its bar, its report and curves.

By hand, where Chromium is installed: `python docs/screenshots.py`. It trains `digits`,
which takes less than a minute.
"""

import html
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

FOLDER = Path(__file__).parent / "screenshots"
COLUMNS = 120
# While this epoch is trained, the picture of the terminal is made. The network is wide
# and a call short, so that an epoch takes seconds.
EPOCH = 5
OPTIONS = ["--epochs", "8", "--model.filters", "512"]
OPTIONS += ["--train.steps-per-execution", "3"]
_ERASE = re.compile(r"\x1b\[2K")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_TERMINAL = """
<meta charset="utf-8">
<style>
  body {{ margin: 0; background: #1e1e1e; color: #d4d4d4; }}
  pre {{ margin: 0; padding: 14px; font: 13px/1.4 "DejaVu Sans Mono", monospace; }}
</style>
<pre>{}</pre>
"""


def main() -> None:
    """Trains, and writes the pictures."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output = _train(folder)
        lines = _screen(output)
        page = folder / "terminal.html"
        page.write_text(_TERMINAL.format(html.escape("\n".join(lines))), "utf-8")
        height = 28 + 19 * len(lines)
        _photograph(page, FOLDER / "bar.png", 1000, height)
        report = folder / "runs/digits-1/report.html"
        _photograph(report, FOLDER / "report.png", 1000, 900)
        _reduce(report.with_name("curves.png"), FOLDER / "curves.png")


def _train(folder: Path) -> str:
    """What a run writes to a terminal."""
    parts = []
    words = [sys.executable, "-m", "pipeline.fit", "digits", *OPTIONS]
    control, terminal = pty.openpty()
    root = str(Path(__file__).parents[1])
    env = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm", "PYTHONPATH": root}
    process = subprocess.Popen(
        words, cwd=folder, env=env, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    while True:
        try:
            part = os.read(control, 65536)
        except OSError:  # the end of a pseudo-terminal
            break
        parts.append(part)
    process.wait()
    return b"".join(parts).decode()


def _screen(output: str) -> list[str]:
    """The lines of the terminal in the middle of an epoch, the bar last."""
    bar = re.search(rf"epoch {EPOCH}/\d+ [^\r\n]*█+[^\r\n]* [5-9]\d%[^\r\n]*", output)
    if bar is None:
        raise RuntimeError(f"no bar of epoch {EPOCH} in\n{output}")
    lines = []
    for line in output[: bar.end()].split("\n"):
        text = _CONTROL.sub("", _ERASE.split(line)[-1])
        lines.append(text[:COLUMNS])
    return [line for line in lines if line.strip()]


def _photograph(page: Path, picture: Path, width: int, height: int) -> None:
    """Takes a picture of a page with Chromium, with at most 128 colors."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("install Chromium: apt-get install chromium")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu"]
    size = f"--window-size={width},{height}"
    target = [f"--screenshot={picture}", page.as_uri()]
    subprocess.run([browser, *options, size, *target], check=True, capture_output=True)
    _reduce(picture, picture)


def _reduce(source: Path, picture: Path) -> None:
    """Saves a picture with few colors, which makes a small file."""
    Image.open(source).convert("RGB").quantize(128).save(picture, optimize=True)
    print(f"{picture.name}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
