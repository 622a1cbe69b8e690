"""Draw one agent's observation: the board, its tiles coloured and numbered."""

import numpy as np

TILE, GAP = 46, 3  # pixels
SIDE = 4 * TILE + 5 * GAP
DARK, EMPTY, INK = (6, 24, 24), (20, 44, 44), (241, 241, 241)
LARGEST_TEXT = 4  # pixels of a digit's dot
DIGITS = (  # 0 to 9: five rows of three dots, a row as one octal digit
    *("75557", "26227", "71747", "71717", "55711"),
    *("74717", "74757", "71111", "75757", "75717"),
)


def colour(exponent: int) -> tuple[int, int, int]:
    """Return the colour of a tile of the game 2048 from its exponent, as (red, green, blue).

    Grey to cyan up to 1024, to blue up to 8192, then red and gold.
    """
    if exponent <= 10:
        return 187 - 18 * exponent, 150 - 3 * exponent, 150
    if exponent <= 13:
        return 0, 190 - 45 * (exponent - 10), 187
    return (187, 0, 0) if exponent == 14 else (190, 150 - 12 * (exponent - 15), 17)


def number(value: int) -> np.ndarray:
    """Return a number's digits as pixels, 5 rows x 3 columns each, (5, 4 * digits - 1) bool."""
    octal = np.array([[int(row) for row in DIGITS[int(digit)]] for digit in str(value)]).T
    dots = octal[:, :, None] >> np.array([2, 1, 0, 9]) & 1  # bit 9 is never set: the gap
    return dots.reshape(5, -1)[:, :-1].astype(bool)


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw the board of the game 2048 as a picture (199, 199, 3) uint8.

    The observation (16,) is the exponents of the tiles, row by row.
    """
    picture = np.full((SIDE, SIDE, 3), DARK, np.uint8)
    for cell, exponent in enumerate(int(value) for value in observation):
        top, left = (GAP + (TILE + GAP) * place for place in divmod(cell, 4))
        tile = picture[top : top + TILE, left : left + TILE]
        tile[:] = colour(exponent) if exponent else EMPTY
        if exponent:
            text = number(2**exponent)
            scale = min(TILE // text.shape[1], LARGEST_TEXT)
            text = text.repeat(scale, 0).repeat(scale, 1)
            y, x = (TILE - text.shape[0]) // 2, (TILE - text.shape[1]) // 2
            tile[y : y + text.shape[0], x : x + text.shape[1]][text] = INK
    return picture
