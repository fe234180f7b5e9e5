"""Knows how a line of text becomes the input of the PP-OCRv4 recogniser, and its output text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

HEIGHT = 48
"""Height in pixels that the recogniser was trained on."""
MIN_WIDTH = 320
MARGIN = 16
FONT_SIZE = 32


def draw(text: str) -> Image.Image:
    """One line of dark text on white, 48 pixels high, in the font that comes with Pillow."""
    font = ImageFont.load_default(FONT_SIZE)
    left, top, right, bottom = font.getbbox(text)
    width = max(MIN_WIDTH, round(right - left) + 2 * MARGIN)
    image = Image.new("RGB", (width, HEIGHT), "white")
    at = (MARGIN - left, (HEIGHT - (bottom - top)) / 2 - top)
    ImageDraw.Draw(image).text(at, text, fill=(20, 20, 20), font=font)
    return image


def pixels(image: Image.Image) -> npt.NDArray[np.float32]:
    """float32[1,3,48,W] in [-1, 1], colours in the order blue, green, red."""
    values = np.asarray(image.convert("RGB"), np.float32)[:, :, ::-1]
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None] / 127.5 - 1)


def characters(metadata: str) -> tuple[str, ...]:
    """What each class means, from the model's metadata entry `character`: one per line.

    Class 0 is the blank of CTC and the last class is the space, neither of which is listed.
    """
    return ("", *metadata.splitlines(), " ")


def decode(probabilities: npt.NDArray[np.generic], classes: Sequence[str]) -> str:
    """The text in float32[1,T,C]: best class per step, repeats joined, blanks dropped.

    Best-path decoding of Graves et al. 2006, "Connectionist temporal classification", 3.2.
    """
    best = probabilities[0].argmax(axis=1)
    starts = np.flatnonzero(np.diff(best, prepend=-1))
    return "".join(classes[best[i]] for i in starts)
