"""Writes images like photographs.

python benchmarks/scripts/photographs.py DIRECTORY COUNT [SIDE]
"""

import sys
from pathlib import Path


def photographs(directory: Path, count: int, side: int, distinct: int = 500) -> None:
    """Writes `count` JPEG files of two classes (smooth noise); some are hard links."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for number in range(count):
        path = directory / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number >= distinct:
            path.hardlink_to(path.with_name(f"{number % distinct}.jpg"))
            continue
        coarse = Image.fromarray(
            generator.integers(0, 256, (side // 4, side // 4, 3), np.uint8)
        )
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(path, quality=90)


if __name__ == "__main__":
    photographs(Path(sys.argv[1]), int(sys.argv[2]), int((*sys.argv, "160")[3]))
