"""The tree of errors: its shape is what handlers rely on."""

import pickle

import pytest

from stateline import errors
from stateline.errors import ErrorKind, StatelineError

PARENTS = {
    "AccessDeniedError": (StatelineError, PermissionError),
    "AlreadyExistsError": (StatelineError, FileExistsError),
    "ClosedError": (StatelineError, ValueError),
    "ConflictError": (StatelineError, OSError),
    "CorruptDataError": (StatelineError, OSError),
    "DataLossError": (StatelineError, OSError),
    "FencedError": (errors.ConflictError,),
    "InternalError": (StatelineError, RuntimeError),
    "InvalidInputError": (StatelineError, ValueError),
    "NotFoundError": (StatelineError, FileNotFoundError),
    "NotInstalledError": (StatelineError, ImportError),
    "OutcomeUnknownError": (StatelineError, OSError),
    "StorageFullError": (StatelineError, OSError),
    "TooManyOpenFilesError": (StatelineError, OSError),
    "UnavailableError": (StatelineError, OSError),
    "UnsupportedVersionError": (errors.CorruptDataError,),
    "UserCodeError": (StatelineError, RuntimeError),
}
CLASSES = sorted(PARENTS)


def test_every_class_is_pinned():
    found = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert found == {*PARENTS, "StatelineError"}
    assert set(errors.__all__) == {*found, "ErrorKind", "chain_of"}


@pytest.mark.parametrize("name", CLASSES)
def test_parents_are_what_handlers_catch(name):
    assert getattr(errors, name).__bases__ == PARENTS[name]


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_has_a_kind_of_its_own(name):
    kind = getattr(errors, name).default_kind
    assert [other for other in CLASSES if getattr(errors, other).default_kind is kind] == [name]


def test_kinds_are_pinned_because_they_are_append_only():
    assert {kind.name: kind.value for kind in ErrorKind} == {kind.name: kind.name.lower() for kind in ErrorKind}
    assert {kind.value for kind in ErrorKind} >= {
        "not_found", "already_exists", "access_denied", "storage_full", "conflict", "fenced", "unavailable", "timeout",
        "outcome_unknown", "data_loss", "corrupt_data", "unsupported_version", "invalid_input", "unknown_option",
        "schema_mismatch", "foreign_root", "closed", "not_installed", "user_code", "internal",
        "arithmetic_overflow", "too_many_open_files",
    }  # fmt: skip


def test_the_drawing_names_every_class_once():
    tree = (errors.__doc__ or "").split("StatelineError", 1)[1]
    for name in CLASSES:
        assert sum(line.replace("│", " ").split()[1:2] == [name] for line in tree.splitlines()) == 1, name


@pytest.mark.parametrize("name", CLASSES)
def test_errors_survive_pickling_with_all_they_say(name):
    error = getattr(errors, name)("it broke", operation="put", subject="a/b", hint="Mend it", kind=ErrorKind.TIMEOUT)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (copy.message, copy.operation, copy.subject, copy.hint, copy.kind) == (
        "it broke", "put", "a/b", "Mend it", ErrorKind.TIMEOUT,
    )  # fmt: skip
    assert str(copy) == str(error) == "put a/b: it broke. Mend it"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "it broke"),
        ({"operation": "put"}, "put: it broke"),
        ({"subject": "a"}, "a: it broke"),
        ({"hint": "Mend it"}, "it broke. Mend it"),
        ({"operation": "put", "subject": "a", "hint": "Mend it"}, "put a: it broke. Mend it"),
    ],
)
def test_rendering_leaves_out_what_is_not_known(fields, text):
    assert str(StatelineError("it broke", **fields)) == text


def test_an_error_that_is_also_an_os_error_renders_its_own_text():
    assert str(errors.NotFoundError("gone", operation="get", subject="a")) == "get a: gone"


def test_the_kind_defaults_to_that_of_the_class():
    assert errors.FencedError("stop").kind is ErrorKind.FENCED
    assert errors.InvalidInputError("x", kind=ErrorKind.UNKNOWN_OPTION).kind is ErrorKind.UNKNOWN_OPTION


class UnsayableError(Exception):
    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("raised", "described"),
    [
        (KeyError("no such thing"), "KeyError: 'no such thing'"),
        (StopIteration(), "StopIteration"),
        (UnsayableError(), "UnsayableError: (its __str__ raised ValueError)"),
    ],
)
def test_what_a_users_function_raised_is_described_whatever_it_is(raised, described):
    assert errors.UserCodeError.described(raised) == described
