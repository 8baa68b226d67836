"""Text of events, drawn for whole columns at once: letters, names, cards, channels and their addresses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["CHANNELS", "HOT_CHANNELS", "channels", "choices", "credit_cards", "letters", "padding", "sentences"]

CHANNELS = 10_000
"""Channels that are not hot."""
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_A = ord("a")
_BLANK_ODDS = 13
_CHANNEL_SEED = 21
"""Channels keep their addresses whatever the seed of the events."""


def letters(random: np.random.Generator, lengths: npt.NDArray[np.int64]) -> pa.Array:
    """One string of letters a to z for each length."""
    return _strings(random.integers(_A, _A + 26, int(lengths.sum()), dtype=np.uint8), lengths)


def sentences(random: np.random.Generator, rows: int, longest: int) -> pa.Array:
    """Strings of 3 to ``longest`` letters, of which one in thirteen is a blank, trimmed."""
    lengths = random.integers(3, longest + 1, rows)
    text = random.integers(_A, _A + 26, int(lengths.sum()), dtype=np.uint8)
    text[random.integers(0, _BLANK_ODDS, len(text), dtype=np.uint8) == 0] = ord(" ")
    return pc.ascii_trim_whitespace(_strings(text, lengths))


def padding(random: np.random.Generator, wanted: int, taken: npt.NDArray[np.int64] | int, rows: int) -> pa.Array:
    """Letters that bring rows to ``wanted`` bytes on average: what is missing, give or take a fifth."""
    missing = np.maximum(wanted - np.broadcast_to(np.asarray(taken, np.int64), rows), 0)
    spread = np.rint(missing * 0.2).astype(np.int64)
    return letters(random, missing - spread + random.integers(0, np.maximum(2 * spread, 1)))


def choices(random: np.random.Generator, values: Sequence[str], rows: int) -> pa.Array:
    """Each value as likely as all others."""
    return pa.array(values).take(pa.array(random.integers(0, len(values), rows)))


def credit_cards(random: np.random.Generator, rows: int) -> pa.Array:
    """Four groups of four digits."""
    digits = random.integers(ord("0"), ord("9") + 1, (rows, 19), dtype=np.uint8)
    digits[:, [4, 9, 14]] = ord(" ")
    return _strings(digits.reshape(-1), np.full(rows, 19, np.int64))


def channels(random: np.random.Generator, rows: int) -> tuple[pa.Array, pa.Array]:
    """Channels and their addresses: half of the rows have a hot channel, the others ``channel-0`` to ``-9999``."""
    names, addresses = _known_channels()
    cold = random.integers(0, CHANNELS, rows)
    hot = CHANNELS + random.integers(0, len(HOT_CHANNELS), rows)
    chosen = pa.array(np.where(random.integers(0, 2, rows) == 0, hot, cold))
    return names.take(chosen), addresses.take(chosen)


@cache
def _known_channels() -> tuple[pa.Array, pa.Array]:
    """All names and addresses, those of the hot channels last."""
    random = np.random.default_rng(_CHANNEL_SEED)
    known = CHANNELS + len(HOT_CHANNELS)
    parts = [letters(random, random.integers(3, 5, known)) for _ in range(3)]
    # A letter in thirteen is a blank in the other texts; in an address it is an underscore.
    parts = [pc.replace_substring_regex(part, "[yz]", "_") for part in parts]
    host = pa.scalar("https://www.nexmark.com")
    addresses = pc.binary_join_element_wise(host, *parts, pa.scalar("item.htm?query=1"), "/")
    numbers = np.arange(CHANNELS)
    suffix = pc.binary_join_element_wise("&channel_id=", pa.array(_reversed_bits(numbers)).cast(pa.string()), "")
    has_number = np.append(random.integers(0, 10, CHANNELS) != 0, np.zeros(len(HOT_CHANNELS), bool))
    suffix = pa.concat_arrays([suffix, pa.array([""] * len(HOT_CHANNELS))])
    addresses = pc.if_else(pa.array(has_number), pc.binary_join_element_wise(addresses, suffix, ""), addresses)
    cold = pc.binary_join_element_wise("channel", pa.array(numbers).cast(pa.string()), "-")
    return pa.concat_arrays([cold, pa.array(HOT_CHANNELS)]), addresses


def _reversed_bits(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The absolute value of the 32 bits of each number in reverse order, read as a signed number."""
    bits = (numbers[:, None] >> np.arange(32)) & 1
    turned = (bits << np.arange(31, -1, -1)).sum(axis=1)
    return np.abs(np.where(turned >= 1 << 31, turned - (1 << 32), turned))


def _strings(text: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> pa.Array:
    """Cuts a run of characters into strings."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text)))
