"""Many small images on one picture."""

import numpy as np

from pipeline.utils.image_sheets import sheet


def test_a_sheet_has_rows_of_images():
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones(
        (1, 28, 28, 1), np.uint8
    )
    page = sheet(images, 3)
    assert page.shape == (2 * 58 - 2, 3 * 58 - 2, 3) and page.dtype == np.uint8
    assert (
        page[0, 58, 0] == 1 and page[58, 58, 2] == 4 and (page[58:, 116:] == 255).all()
    )
