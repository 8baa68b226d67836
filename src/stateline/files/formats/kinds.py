"""Questions about types of columns, and about what is inside of them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

__all__ = ["children", "holds", "is_binary", "is_extension", "is_interval", "is_text", "is_view"]


def children(kind: pa.DataType) -> list[pa.DataType]:
    """The types of what is inside of a type, one level down."""
    return [kind.field(index).type for index in range(kind.num_fields)] if pa.types.is_nested(kind) else []


def holds(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether something is true of a type, or of a type inside of it."""
    return test(kind) or any(holds(child, test) for child in children(kind))


def is_interval(kind: pa.DataType) -> bool:
    """Spark's intervals, of either sort."""
    return bool(pa.types.is_interval(kind) or pa.types.is_duration(kind))


def is_text(kind: pa.DataType) -> bool:
    """Strings in their plain layouts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Bytes in their plain layouts."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def is_view(kind: pa.DataType) -> bool:
    """Strings and bytes in the layout of views."""
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def is_extension(kind: pa.DataType) -> bool:
    """Types that say how another one is meant."""
    return isinstance(kind, pa.BaseExtensionType)
