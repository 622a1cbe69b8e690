"""Sobol's sequence, scrambled: points that fill a cube more evenly than independent ones.

Sources: Sobol (1967); Bratley and Fox (1988), algorithm 659: direction numbers from primitive
polynomials over GF(2). Matousek (1998): scrambling by a random lower triangular matrix and a
random shift. The first direction numbers are drawn here, as the scrambling is.
"""

from collections.abc import Iterator
from itertools import count, islice

import numpy as np

BITS = 30


def sobol(points: int, dimensions: int, draw: np.random.Generator) -> np.ndarray:
    """(points, dimensions) float64 in [0, 1): the sequence's first, scrambled."""
    columns = _directions(dimensions, draw)  # (dimensions, BITS)
    columns = _scrambled(columns, draw)
    shifts = draw.integers(0, 1 << BITS, dimensions)
    gray = np.arange(points) ^ (np.arange(points) >> 1)
    numbers = np.tile(shifts, (points, 1))  # (points, dimensions)
    for bit in range(BITS):
        chosen = (gray >> bit & 1).astype(bool)
        numbers[chosen] ^= columns[:, bit]
    return numbers / (1 << BITS)


def _directions(dimensions: int, draw: np.random.Generator) -> np.ndarray:
    """(dimensions, BITS) int64: number k has its highest bit at BITS - 1 - k."""
    directions = np.empty((dimensions, BITS), np.int64)
    polynomials = islice(_primitive(), max(0, dimensions - 1))
    directions[:1] = 1 << (BITS - 1 - np.arange(BITS))  # the van der Corput sequence
    for row, polynomial in enumerate(polynomials, 1):
        degree = polynomial.bit_length() - 1
        numbers = [2 * int(draw.integers(1 << k)) + 1 for k in range(degree)]  # odd, below 2^(k+1)
        for k in range(degree, BITS):
            new = numbers[k - degree] ^ (numbers[k - degree] << degree)
            for j in range(1, degree):
                if polynomial >> (degree - j) & 1:
                    new ^= numbers[k - j] << j
            numbers.append(new)
        directions[row] = [numbers[k] << (BITS - 1 - k) for k in range(BITS)]
    return directions


def _primitive() -> Iterator[int]:
    """Primitive polynomials over GF(2), bits for coefficients, beginning with x + 1."""
    for degree in count(1):
        for polynomial in range((1 << degree) + 1, 2 << degree, 2):
            power, order = 1, 0
            while power != 1 or not order:  # the powers of x, modulo the polynomial
                power <<= 1
                power ^= polynomial * (power >> degree)
                order += 1
            if order == (1 << degree) - 1:
                yield polynomial


def _scrambled(columns: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Direction numbers times a random lower triangular matrix with ones on its diagonal.

    Bit i of a result, counted from the highest, is the parity of a random choice of the bits above
    it, and itself.
    """
    dimensions = len(columns)
    result = np.zeros_like(columns)
    for i in range(BITS):
        place = BITS - 1 - i
        above = draw.integers(0, 1 << i, dimensions) << (place + 1)  # i bits, all above bit i
        bits = columns & (above | 1 << place)[:, None]
        result |= (np.bitwise_count(bits).astype(np.int64) & 1) << place
    return result
