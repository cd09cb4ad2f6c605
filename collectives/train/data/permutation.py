"""A permutation of any number of samples that is never held in memory."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGEST = 1 << 62
ROUNDS = 12
CHUNK = 1 << 13  # rows at a time: the working arrays stay in the second cache
MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64: odd, bits well mixed
HALF = np.uint64(32)


class Permutation:
    """A permutation of the numbers 0 to n - 1 that depends on `key`, any integers. It takes the same memory for any n.

    ``permutation(i)`` is the number in place i. For an array of places it is an array of that shape, of type int64.

    The method is a Feistel network with a key on the numbers below the next power of two. A result that is not below n
    is put in again until it is: cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002,
    sections 3 and 4), on average less than once. The two halves of a number differ by at most one bit in width, so a
    round changes one of them by exclusive or with a function of the other. 12 rounds make even the permutations of few
    numbers alike in frequency. The keys of the rounds are SHAKE-256 of `key`, so the permutation depends neither on
    the machine nor on NumPy's version. It is not meant to keep secrets.

    Raises ValueError unless n is from 0 to 2**62.
    """

    def __init__(self, n: int, *key: int) -> None:
        if not 0 <= n <= LARGEST:
            raise ValueError(f"a permutation is of 0 to 2**62 numbers, not {n}")
        self.n = n
        bits = max(2, (n - 1).bit_length())
        self._low, self._high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
        material = hashlib.shake_256(",".join(map(str, key)).encode()).digest(8 * ROUNDS)
        self._keys = np.frombuffer(material, "<u8").astype(np.uint64)

    def __call__(self, places: ArrayLike) -> NDArray[np.int64]:
        """The numbers in these places. IndexError for a place outside 0 to n - 1."""
        given = np.asarray(places, dtype=np.int64)
        if given.size and not (0 <= int(given.min()) and int(given.max()) < self.n):
            raise IndexError(f"places are from 0 to {self.n - 1}, not {given.min()} to {given.max()}")
        numbers = given.astype(np.uint64).ravel()
        self._encipher(numbers)
        outside = np.flatnonzero(numbers >= self.n)
        while len(outside):
            again = numbers[outside]
            self._encipher(again)
            numbers[outside] = again
            outside = outside[again >= self.n]
        return numbers.reshape(given.shape).astype(np.int64)

    def _encipher(self, numbers: NDArray[np.uint64]) -> None:
        """Put the numbers through the network, in place."""
        for start in range(0, len(numbers), CHUNK):
            self._rounds(numbers[start : start + CHUNK])

    def _rounds(self, numbers: NDArray[np.uint64]) -> None:
        high = numbers >> self._low
        low = numbers & ((np.uint64(1) << self._low) - np.uint64(1))
        mixed, shifted = np.empty_like(numbers), np.empty_like(numbers)
        for i, key in enumerate(self._keys):
            source, changed, width = (high, low, self._low) if i % 2 else (low, high, self._high)
            np.bitwise_xor(source, key, out=mixed)
            np.multiply(mixed, MIX[0], out=mixed)
            np.right_shift(mixed, HALF, out=shifted)
            np.bitwise_xor(mixed, shifted, out=mixed)
            np.multiply(mixed, MIX[1], out=mixed)
            np.right_shift(mixed, np.uint64(64) - width, out=mixed)
            np.bitwise_xor(changed, mixed, out=changed)
        np.left_shift(high, self._low, out=numbers)
        np.bitwise_or(numbers, low, out=numbers)
