"""Strings to typed settings."""

import dataclasses
import json
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.errors import ErrorKind, InvalidInputError
from stateline.options import (
    Secret,
    check_known,
    duration_microseconds,
    normalise_settings,
    parse_bool,
    parse_choice,
    parse_duration,
    parse_int,
    parse_size,
    setting,
    settings_from_options,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0), ("0", 0), (17, 17), ("17", 17), ("17b", 17), ("1kB", 1000), ("1KiB", 1024), ("5MB", 5_000_000),
        ("5 MiB", 5 * 2**20), ("1.5gb", 1_500_000_000), (" 2tib ", 2 * 2**40), ("0.5KiB", 512), ("3PB", 3 * 10**15),
    ],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", [-1, "-1", "", "MB", "5 XB", "5M B", "1e3", "0.3b", "1.0001KiB", True, None, 1.5, "٣"])
def test_what_is_no_size_is_refused_with_its_name(text):
    with pytest.raises(InvalidInputError, match=r"buffer_size.*Give a") as caught:
        parse_size(text, "buffer_size")
    assert caught.value.subject == "buffer_size"


@given(st.integers(0, 2**70))
def test_whole_numbers_of_bytes_keep_their_value(size):
    assert parse_size(size) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (0, 0.0), (1.5, 1.5), ("1.5", 1.5), ("500ms", 0.5), ("10s", 10.0), ("5 min", 300.0), ("2m", 120.0),
        ("100 milliseconds", 0.1), ("1 millisecond", 0.001), ("5 microseconds", 5e-6),
        ("1 week", 604800.0), ("2 weeks", 1209600.0),
        ("1h", 3600.0), ("2 days", 172800.0), ("1d", 86400.0), ("250us", 0.00025), (timedelta(minutes=1), 60.0),
    ],
)  # fmt: skip
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1 hour 30 minutes", 5_400_000_000), ("30 minutes 1 hour", 5_400_000_000), ("90 minutes", 5_400_000_000),
        ("interval 1 hour", 3_600_000_000), ("INTERVAL  1 HOUR\t30 Minutes ", 5_400_000_000),
        ("interval '1' hour", 3_600_000_000), ("interval '1 hour 1 second'", 3_601_000_000),
        ("1 week 1 day 24 hours", 777_600_000_000), ("1 second 1 millisecond 1 microsecond", 1_001_001),
        ("-1 hour 30 minutes", -1_800_000_000), ("1 hour - 30 minutes", 1_800_000_000), ("+1 hour", 3_600_000_000),
        (".5 seconds", 500_000), ("5. seconds", 5_000_000), ("0.0000019 seconds", 1), ("1h 30min", 5_400_000_000),
        ("9223372036854775807 microseconds", 2**63 - 1), (0.29, 290_000), (-1, -1_000_000),
        (timedelta(days=400_000, microseconds=1), 34_560_000_000_000_001),
    ],
)  # fmt: skip
def test_durations_are_counted_as_spark_counts_intervals(text, microseconds):
    assert duration_microseconds(text) == microseconds


def test_a_setting_takes_the_same_texts_as_a_window():
    assert parse_duration("1 hour 30 minutes") == 5400.0
    with pytest.raises(InvalidInputError, match="0 or more"):
        parse_duration("1 hour -90 minutes")


@pytest.mark.parametrize("text", ["1 month", "2 years", "interval 1 year 2 days", "1 day 1 MONTHS"])
def test_months_and_years_are_no_durations_and_the_error_says_why(text):
    for parse in (parse_duration, duration_microseconds):
        with pytest.raises(InvalidInputError, match=r"size: .* has no fixed length"):
            parse(text, "size")


@pytest.mark.parametrize(
    "text",
    [
        "interval", "interval 10", "-interval 1 hour", "interval1 hour", "'1 hour'", "1 hour30 minutes", "1 30 minutes",
        "1 hour, 30 minutes", "1 hour and 30 minutes", "1e3 s", "\uff11 hour", "1 hour " * 20,
        "9223372036854775808 microseconds",
    ],
)  # fmt: skip
def test_what_spark_does_not_take_for_an_interval_is_no_duration_either(text):
    with pytest.raises(InvalidInputError, match="size"):
        duration_microseconds(text, "size")


@pytest.mark.parametrize("text", [-1, "-1s", "", "1 fortnight", float("nan"), float("inf"), True, None, timedelta(-1)])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InvalidInputError, match="delay"):
        parse_duration(text, "delay")


@pytest.mark.parametrize(
    ("value", "flag"), [(True, True), ("Yes", True), (" on ", True), ("1", True), ("FALSE", False), ("off", False)]
)
def test_flags(value, flag):
    assert parse_bool(value) is flag


@pytest.mark.parametrize("value", ["", "2", "tru", 1, None])
def test_what_is_no_flag_is_refused(value):
    with pytest.raises(InvalidInputError):
        parse_bool(value)


def test_whole_numbers_respect_inclusive_bounds():
    assert parse_int("7", minimum=7, maximum=7) == 7
    for bad in ("6", "8", "7.0", "", None, True, 7.0):
        with pytest.raises(InvalidInputError):
            parse_int(bad, "n", minimum=7, maximum=7)


def test_choices_are_case_insensitive():
    assert parse_choice(" LZ4 ", ("none", "lz4")) == "lz4"
    with pytest.raises(InvalidInputError, match="none, lz4"):
        parse_choice("gzip", ("none", "lz4"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    buffer_size: int = setting("1KiB", parse_size, help="How much.")
    plain: str = "as is"

    def __post_init__(self) -> None:
        normalise_settings(self)


def test_settings_parse_defaults_options_and_keywords_alike():
    assert Sample().buffer_size == 1024
    assert settings_from_options(Sample, {"buffer_size": "2KiB"}) == Sample(buffer_size="2KiB")  # type: ignore[arg-type]


def test_an_unknown_option_names_the_nearest_known_one():
    with pytest.raises(InvalidInputError, match="Did you mean 'buffer_size'") as caught:
        settings_from_options(Sample, {"bufer_size": "1"})
    assert caught.value.kind is ErrorKind.UNKNOWN_OPTION


def test_an_option_near_to_nothing_lists_all():
    with pytest.raises(InvalidInputError, match="Known: buffer_size, plain"):
        settings_from_options(Sample, {"zzz": "1"})
    with pytest.raises(InvalidInputError, match="Known: none"):
        check_known(["a"], [])


def test_a_secret_shows_itself_to_reveal_only():
    secret = Secret("hunter2")
    assert secret.reveal() == "hunter2"
    for shown in (str(secret), repr(secret), f"{secret}", f"{secret:>10}", f"{[secret]}", "%s" % secret):  # noqa: UP031
        assert "hunter2" not in shown
    with pytest.raises(InvalidInputError, match="cannot be pickled"):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)


@pytest.mark.parametrize("text", ["9" * 400, "1" + "0" * 400 + "MB", "9" * 400 + "PiB"])
def test_a_size_beyond_all_bounds_is_refused(text):
    with pytest.raises(InvalidInputError):
        parse_size(text)


def test_large_sizes_keep_every_byte():
    assert parse_size("9007199254740993") == 9007199254740993
    assert parse_size("9007.199254740993 TB") == 9007199254740993


def test_a_duration_beyond_all_bounds_is_refused():
    with pytest.raises(InvalidInputError):
        parse_duration(10**400)


def test_a_key_that_is_no_text_is_an_unknown_option():
    with pytest.raises(InvalidInputError) as caught:
        check_known([5], ["one"])
    assert caught.value.kind is ErrorKind.UNKNOWN_OPTION
