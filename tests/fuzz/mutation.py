"""Mutations of some bytes, decided by a seed: what a test run can afford, and what runs where atheris does not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

_NUMBERS = (0, 1, -1, 2**15 - 1, 2**16 - 1, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63))


def mutations(seeds: Sequence[bytes], dice: random.Random) -> Iterator[bytes]:
    """Without end; each is one to four changes away from a seed."""
    while True:
        data = dice.choice(seeds)
        for _ in range(dice.choice((1, 1, 1, 2, 4))):
            data = _changed(data, seeds, dice)
        yield data


def _changed(data: bytes, seeds: Sequence[bytes], dice: random.Random) -> bytes:
    at = dice.randrange(len(data) + 1)
    match dice.randrange(8):
        case 0 if at < len(data):  # One bit.
            return data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :]
        case 1 if at < len(data):  # One byte.
            return data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]
        case 2:  # A number that is at a bound, of any width and order.
            width, order = dice.choice((1, 2, 4, 8)), dice.choice(("little", "big"))
            number = (dice.choice(_NUMBERS) % (1 << 8 * width)).to_bytes(width, order)
            return data[:at] + number + data[at + width :]
        case 3:  # The beginning.
            return data[:at]
        case 4:  # A piece less, or a piece of another one in its place.
            end = dice.randrange(at, min(len(data), at + 64) + 1)
            other = dice.choice(seeds)
            start = dice.randrange(len(other) + 1)
            return data[:at] + (other[start : start + dice.randrange(64)] if dice.random() < 0.5 else b"") + data[end:]
        case 5:  # A piece twice.
            return data[:at] + data[max(0, at - dice.randrange(1, 64)) : at] + data[at:]
        case 6:  # Something between.
            return data[:at] + dice.randbytes(dice.randrange(1, 9)) + data[at:]
        case _:  # A decimal digit, for what is text.
            digits = [index for index, byte in enumerate(data) if 48 <= byte <= 57]
            if not digits:
                return data[:at]
            place = dice.choice(digits)
            return data[:place] + dice.choice((b"-", b"9" * 20, b"0", b"1e9", b".5")) + data[place + 1 :]
