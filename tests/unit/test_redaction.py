"""No text shows a secret: errors with all that they were raised from, logs, representations, and the command line."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from urllib.parse import quote, quote_plus

import pyarrow as pa
import pytest
from click.testing import CliRunner

from stateline.blob import open_store
from stateline.cli.commands import stateline
from stateline.errors import InvalidInputError, StatelineError, UserCodeError
from stateline.options import Secret, plain_options
from stateline.redaction import clean, hide, redacted, safe_error
from stateline.tables.targets import TableTarget, open_table

SCHEMA = pa.schema([("k", pa.int64())])
NOWHERE = "127.0.0.1:9"
SECRETS = {
    "at": "Canary1@Hostile1",
    "percent": "Canary2%Hostile2",
    "escape": "Canary3%zzHostile3",
    "colon": "Canary4:Hostile4",
    "slash": "Canary5/Hostile5",
    "fragment": "Canary6#Hostile6",
    "query": "Canary7?Hostile7&more=Hostile7",
    "space": "Canary8 Hostile8",
    "quotes": "Canary9'Hostile9\"Hostile9",
    "unicode": "Canäry10→Hostile10",
    "backslash": "Canary11\\Hostile11",
    "all": "Canary12@%41/:#?& '\"ü\\Hostile12",
}
WORDS = ("canary", "canäry", "hostile")
EVERY_SECRET = pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
HARD = ["at", "escape", "slash", "quotes", "all"]
FORMS = {"plain": str, "%": lambda text: quote(text, safe="")}
EVERY_FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def everything(error: BaseException) -> str:
    """All that a person or a program may read of an error, also of what it was raised from and while."""
    said, waiting, seen = [], [error], set()
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        said += [*traceback.format_exception_only(link), str(link), repr(link), repr(vars(link))]
        waiting += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]
    if isinstance(error, StatelineError):
        said.append(repr(pickle.loads(pickle.dumps(error))))
    shown = traceback.TracebackException.from_exception(error, capture_locals=False)
    return "\n".join([*said, *(line for line in shown.format(chain=True) if "raise" not in line)])


def assert_hidden(text: str) -> None:
    lowered = text.lower()
    assert [word for word in WORDS if word in lowered or quote(word) in lowered] == [], text


def failing(call, caplog) -> StatelineError:
    """The error of a call that must fail, and must show nothing, there and in the log."""
    caplog.set_level(logging.DEBUG, logger="stateline")
    with pytest.raises(StatelineError) as caught:
        call()
    assert_hidden(everything(caught.value))
    assert_hidden("\n".join(caplog.messages))
    return caught.value


# -- texts ----------------------------------------------------------------------------------------------------------


@EVERY_SECRET
def test_each_spelling_of_a_secret_is_hidden(secret):
    hide(secret)
    for text in (secret, quote(secret), quote(secret, safe=""), quote_plus(secret), repr(secret), json.dumps(secret)):
        assert_hidden(redacted(f"before {text} after"))
        assert redacted(f"before {text} after").startswith("before ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://key:geheim@bucket/x", "s3://key:***@bucket/x"),
        ("postgrsql://me:p@ss/w0rd@host:5432/db", "postgrsql://me:***@host:5432/db"),
        ("postgresql//me:geheim@host/db", "postgresql//me:***@host/db"),
        ("https://x/y?sp=r&sig=abc%2F&sv=1", "https://x/y?sp=r&sig=***&sv=1"),
        ("host=h password='a b' user=u", "host=h password=*** user=u"),
        ("AccountName=a;AccountKey=abc==;x=y", "AccountName=a;AccountKey=***;x=y"),
        ("az://container@account/root", "az://container@account/root"),
        ("user=me host=there port=5432", "user=me host=there port=5432"),
        ("http://localhost:8181/v1/config", "http://localhost:8181/v1/config"),
    ],
)
def test_what_looks_like_a_secret_is_hidden_and_what_does_not_stays(text, expected):
    assert redacted(text) == expected


def test_a_short_secret_is_hidden_as_a_word_and_never_inside_of_one():
    hide("xq7")
    assert redacted("the password xq7 of xq7x") == "the password *** of xq7x"


def test_what_no_option_of_a_secret_is_stays_visible():
    plain_options(
        {"token-refresh-enabled": "true", "credentials_file": "/etc/visible-key.json", "type": "visible-type"}
    )
    assert redacted("true /etc/visible-key.json visible-type") == "true /etc/visible-key.json visible-type"


def test_an_error_and_all_that_it_was_raised_from_are_cleaned():
    hide("Canary20")

    def fail():
        try:
            try:
                raise OSError(5, "no", "/x/Canary20")
            except OSError as error:
                error.add_note("tried Canary20")
                raise KeyError("Canary20") from error
        except KeyError as error:
            raise InvalidInputError("got Canary20", subject="Canary20", hint="Canary20") from error

    with pytest.raises(InvalidInputError) as caught:
        fail()
    assert_hidden(everything(caught.value))
    caught.value.subject = "later Canary20"
    assert_hidden(str(caught.value))


class StubbornError(Exception):
    """Its text cannot be changed."""

    def __str__(self):
        return "Canary21"


def test_an_error_that_cannot_be_cleaned_has_a_stand_in():
    hide("Canary21")
    plain = ValueError("plain")
    assert safe_error(plain) is plain
    made = safe_error(StubbornError())
    assert_hidden(everything(made))
    assert "StubbornError" in str(made)
    clean(None)


def test_what_an_error_keeps_of_an_answer_is_cleaned():
    """As an SDK keeps the parsed answer of a service, which may repeat what it was sent."""
    hide("Canary23")
    error = ValueError("plain", {"Message": "Canary23"})
    error.response = {"Error": {"Message": ["Canary23", b"Canary23", 5]}, "Canary23": (None, "Canary23")}
    error.code = kept = {"Code": 403}
    clean(error)
    assert_hidden(everything(error))
    assert error.response["Error"]["Message"][2] == 5
    assert error.code is kept


def test_a_context_that_cannot_be_cleaned_is_replaced_in_the_chain():
    hide("Canary21")

    def fail():
        try:
            try:
                raise StubbornError
            except StubbornError as error:
                kept = ValueError("plain")
                kept.inner = error
                raise kept from error
        except ValueError as error:
            raise InvalidInputError("plain") from error

    with pytest.raises(InvalidInputError) as caught:
        fail()
    assert_hidden(everything(caught.value))
    assert "StubbornError" in str(caught.value.__cause__.__context__)


def test_text_that_a_program_raises_is_hidden_too():
    hide("Canary22")
    assert_hidden(str(UserCodeError(UserCodeError.described(ValueError("Canary22")))))


# -- stores ---------------------------------------------------------------------------------------------------------


def stores(secret):
    patient = {"attempts": "1", "connect_timeout": "1s", "read_timeout": "1s"}
    endpoint = {"endpoint": f"http://{NOWHERE}"}
    s3 = {"region": "us-east-1", "access_key_id": "AKIA", "secret_access_key": secret, "session_token": secret}
    azure = {"connection_string": f"AccountName=a;AccountKey={secret};BlobEndpoint=http://{NOWHERE}/a"}
    return [
        ("s3://bucket/x", patient | endpoint | s3),
        ("s3://bucket/x", patient | s3 | {"endpoint": f"http://user:{secret}@{NOWHERE}"}),
        ("az://container@a/x", patient | azure),
        ("az://container@a/x", patient | endpoint | {"account_key": secret}),
        ("az://container@a/x", patient | endpoint | {"sas_token": f"sv=1&sig={secret}"}),
        ("gs://bucket/x", {"attempts": "1"} | endpoint | {"credentials_file": "/nowhere.json", "api_key": secret}),
        ("memory://x", {"password": secret}),
        ("/tmp", {"secret_key": secret}),
        *((f"{scheme}user:{secret}@bucket/x", {}) for scheme in ("s3://", "gs://", "az://", "memory:/", "s4://")),
        *(
            (f"{scheme}user:{secret}@bucket/x", {})
            for scheme in ("s3:/", "s3:", "s3//", "https://", "sss3://", "az:///")
        ),
    ]


def opened_and_used(url, options):
    store = open_store(url, options)
    assert_hidden(repr(store) + store.url)
    try:
        store.get("object")
    finally:
        store.close()


@pytest.mark.filterwarnings("ignore")
@EVERY_FORM
@pytest.mark.parametrize("name", HARD)
def test_no_store_shows_a_secret(name, form, caplog):
    for url, options in stores(form(SECRETS[name])):
        failing(lambda given=(url, options): opened_and_used(*given), caplog)


SCHEMES = ("s3://", "gs://", "az://", "memory:/", "s4://", "s3:/", "s3:", "s3//", "https://", "sss3://", "az:///")


@EVERY_FORM
@EVERY_SECRET
def test_no_place_with_a_secret_in_it_is_shown(secret, form, caplog):
    for scheme in SCHEMES:
        url = f"{scheme}user:{form(secret)}@bucket/x"
        failing(lambda url=url: opened_and_used(url, {}), caplog)


@EVERY_SECRET
def test_the_command_line_shows_no_secret(secret):
    for arguments in (
        ["checkpoint", "ls", f"s3://user:{secret}@bucket/x"],
        ["checkpoint", "ls", f"s3:/user:{secret}@bucket/x"],
        ["checkpoint", "ls", "s3://bucket/x", "--option", f"secret_acess_key={secret}"],
        ["checkpoint", "ls", "memory://x", "--option", f"password={secret}"],
    ):
        result = CliRunner().invoke(stateline, arguments)
        assert result.exit_code != 0
        assert_hidden(result.output)


# -- tables ---------------------------------------------------------------------------------------------------------


def postgresql_uris(secret):
    for scheme in (
        "postgresql://",
        "postgres://",
        "postgrsql://",
        "postgresql:/",
        "postgresql:",
        "postgresql//",
        "http://",
    ):
        yield f"{scheme}user:{secret}@{NOWHERE}/db"
    yield f"postgresql://user:{secret}@{NOWHERE}/db?connect_timeout=no"
    yield f"postgresql://user@{NOWHERE}/db?password={secret}&unknown=1"
    yield f"postgresql://user:{secret}@127.0.0.1:port/db"
    yield f"host=127.0.0.1 port=9 password='{secret}'"
    yield f"host=127.0.0.1 port=9 password={secret}"


def used(target):
    table = open_table(target, schema=SCHEMA)
    assert_hidden(f"{target!r} {table!r} {table.name}")
    try:
        table.look("app")
    finally:
        table.close()


@EVERY_FORM
@pytest.mark.parametrize("name", HARD)
def test_postgresql_shows_no_secret(name, form, caplog):
    for uri in postgresql_uris(form(SECRETS[name])):
        target = TableTarget(format="postgresql", target="t", options={"uri": uri})
        failing(lambda target=target: used(target), caplog)


@EVERY_SECRET
def test_a_uri_that_is_none_is_refused_without_showing_it(secret, caplog):
    target = TableTarget(format="postgresql", target="t", options={"uri": secret})
    assert "must begin with postgresql://" in str(failing(lambda: used(target), caplog))


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://user@host/db",
        "postgresql://user:a%40b%2Fc@host:5432/db?sslmode=require",
        "postgres://user:a:b@[::1]:5432/db",
        "postgresql:///db?host=/var/run/socket&user=a@b",
        "postgresql://",
        "host=/run user='a b' password='it\\'s'",
        "dbname = x",
    ],
)
def test_what_libpq_understands_is_taken(uri):
    open_table(TableTarget(format="postgresql", target="t", options={"uri": uri}), schema=SCHEMA).close()


def test_a_password_that_must_be_encoded_is_named_with_the_way_to_do_it(caplog):
    for password in ("Canary@1", "Canary/1", "Canary%1", "Canary 1"):
        uri = f"postgresql://user:{password}@host/db"
        error = failing(
            lambda uri=uri: used(TableTarget(format="postgresql", target="t", options={"uri": uri})), caplog
        )
        assert "urllib.parse.quote" in str(error)


def iceberg_options(secret):
    yield {"type": "rest", "uri": f"http://user:{secret}@{NOWHERE}"}
    yield {"type": "rest", "uri": f"htp://user:{secret}@{NOWHERE}"}
    yield {"type": "rest", "uri": f"http://{NOWHERE}", "token": secret}
    yield {"type": "rest", "uri": f"http://{NOWHERE}", "credential": f"id:{secret}"}
    yield {"type": "rest", "uri": f"http://{NOWHERE}", "header.Authorization": f"Bearer {secret}\n"}
    yield {"type": "sql", "uri": f"sqlite:////nowhere/{NOWHERE}?password={secret}"}
    yield {"type": "sql", "uri": f"postgresql+psycopg2://user:{secret}@{NOWHERE}/db"}
    yield {"type": "sql", "uri": f"nosuch://user:{secret}@{NOWHERE}/db"}
    yield {"type": "sql", "uri": f"://user:{secret}@{NOWHERE}"}
    yield {"type": "nosuch", "uri": f"thrift://user:{secret}@{NOWHERE}", "password": secret}
    yield {"py-catalog-impl": "no.such.Catalog", "s3.secret-access-key": secret}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HARD)
def test_no_iceberg_catalog_shows_a_secret(name, caplog):
    for options in iceberg_options(SECRETS[name]):
        named = {f"catalog.{name}": value for name, value in options.items()}
        target = TableTarget(format="iceberg", target="a.b", options=named)
        failing(lambda target=target: used(target), caplog)


@EVERY_SECRET
def test_delta_and_sqlite_show_no_secret(secret, caplog, tmp_path):
    endpoint = {"storage.AWS_ENDPOINT_URL": f"http://{NOWHERE}", "storage.AWS_ALLOW_HTTP": "true"}
    retries = {"storage.max_retries": "0", "storage.retry_timeout": "1s", "storage.AWS_REGION": "us-east-1"}
    keys = {"storage.AWS_ACCESS_KEY_ID": "AKIA", "storage.AWS_SECRET_ACCESS_KEY": secret}
    for form, place, options in (
        ("delta", "s3://bucket/t", endpoint | retries | keys),
        ("delta", f"s3://AKIA:{secret}@bucket/t", endpoint | retries),
        ("delta", f"sthree://AKIA:{secret}@bucket/t", {}),
        ("delta", f"s3//AKIA:{secret}@bucket/t", {}),
        ("delta", f"s3://bucket/t?token={secret}", {}),
        ("sqlite", "t", {"path": f"{tmp_path}/none/x.db", "password": secret}),
    ):
        failing(lambda args=(form, place, options): used(made(*args)), caplog)


def made(form, place, options):
    return TableTarget(format=form, target=place, options=options)


def test_a_wrapped_credential_is_known_from_then_on():
    Secret("Canary30")
    assert_hidden(redacted("Canary30"))
