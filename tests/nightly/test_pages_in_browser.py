"""The pages of the site in a browser."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from processes import REPOSITORY

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

_FRAMES = """
<script>
addEventListener("load", async () => {
  const over = {}
  for (const width of [400, 1400]) for (const page of PAGES) {
    const frame = document.createElement("iframe")
    frame.style = `border: 0; height: 900px; width: ${width}px`
    frame.src = page
    await new Promise(loaded => { frame.onload = loaded; document.body.append(frame) })
    const text = frame.contentDocument.querySelector(".content")  // the theme cuts html
    const broken = [...frame.contentDocument.images].filter(i => !i.naturalWidth).length
    if (text.scrollWidth > text.clientWidth || broken || !text.innerText.trim())
      over[`${page} at ${width}`] = [text.scrollWidth, text.clientWidth, broken]
    frame.remove()
  }
  document.body.innerText = JSON.stringify(over)
})
</script>
<body>not finished</body>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no browser: apt-get install chromium")
def test_no_page_is_wider_than_the_window(tmp_path):
    """At 400 and 1,400 pixels; what is wider, such as a table, scrolls by itself."""
    site = tmp_path / "site"
    sphinx = ["sphinx", "-q", "-b", "html", "docs", str(site)]
    subprocess.run([sys.executable, "-m", *sphinx], cwd=REPOSITORY, check=True)
    docs = REPOSITORY / "docs"
    pages = [path.relative_to(docs) for path in docs.glob("**/*.md")]
    names = json.dumps([page.with_suffix(".html").as_posix() for page in pages])
    frames = site / "frames.html"
    frames.write_text(_FRAMES.replace("PAGES", names), encoding="utf-8")
    words = [
        *("--headless", "--no-sandbox", "--disable-gpu"),
        "--allow-file-access-from-files",
        "--virtual-time-budget=60000",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1500,900",
        "--dump-dom",
        frames.as_uri(),
    ]
    shown = subprocess.run(
        [CHROMIUM, *words], capture_output=True, text=True, timeout=300
    )
    assert re.search(r"<body>(.*?)</body>", shown.stdout, re.DOTALL)[1] == "{}"
