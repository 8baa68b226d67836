"""The options that every cloud store has, and how endpoints and credentials are parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from stateline.errors import InvalidInputError
from stateline.options import Secret, normalise_settings, parse_duration, parse_int, setting

__all__ = ["CloudSettings", "parse_endpoint", "parse_secret"]

_ENDPOINT: Final = re.compile(r"https?://[^/\s]+(?:/\S*)?\Z", re.IGNORECASE)


def parse_secret(value: Secret | str | None, name: str) -> Secret | None:
    """A credential, wrapped so that it never shows; nothing for nothing."""
    if value is None or isinstance(value, Secret):
        return value
    if not isinstance(value, str) or not value:
        raise InvalidInputError("must not be empty", subject=name, hint="Leave it out to use the SDK's own chain")
    return Secret(value)


def parse_endpoint(value: str, name: str) -> str:
    """The URL of a service, which has no credential in it."""
    if "@" in value or "?" in value:
        raise InvalidInputError(
            "must not contain '@' or '?', as a credential would",
            subject=name,
            hint="Give credentials as options of their own",
        )
    if value and _ENDPOINT.match(value) is None:
        raise InvalidInputError("is not a URL", subject=name, hint="Write http://host:port or https://host")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSettings:
    """The retry budget of a cloud store. The SDKs spend it, with their own exponential delays."""

    attempts: int = setting(
        6, lambda value, name: parse_int(value, name, minimum=1, maximum=100), help="Tries of one request"
    )
    connect_timeout: float = setting("10s", parse_duration, help="Until a connection stands")
    read_timeout: float = setting("60s", parse_duration, help="Without a byte, until an answer counts as lost")
    parallelism: int = setting(
        8, lambda value, name: parse_int(value, name, minimum=1, maximum=64), help="Requests of one call at a time"
    )
    page_size: int = setting(
        1000, lambda value, name: parse_int(value, name, minimum=1, maximum=1000), help="Names per page of a listing"
    )

    def __post_init__(self) -> None:
        normalise_settings(self)
