"""Delta on an S3 service: files and log through two clients, and the token through a conditional put."""

from __future__ import annotations

import boto3
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stateline.blob import open_store
from stateline.environment import system_environment
from stateline.files import FileOutput, RollingPolicy
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.plan import PLAIN
from stateline.tables import Outcome, TableChange, TableTarget, TableToken, commit_once, open_table
from tests.integration.stores.emulators import moto
from tests.unit.tables.table_kit import SCHEMA

BUCKET = "lake"
WORLD = system_environment()


@pytest.fixture(scope="module")
def service():
    with moto() as url:
        options = {
            "endpoint": url,
            "region": "us-east-1",
            "access_key_id": "key",
            "secret_access_key": "secret",
            "path_style": "true",
        }
        client = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret"
        )
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield options


def rows_of(target: TableTarget, options) -> list:
    storage = {
        "AWS_ENDPOINT_URL": options["endpoint"],
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ALLOW_HTTP": "true",
    }
    table = DeltaTable(target.target, storage_options=storage)
    return sorted(tuple(row.values()) for row in table.to_pyarrow_table().to_pylist())


def test_a_stream_into_delta_on_s3(service):
    target = TableTarget(format="delta", target=f"s3://{BUCKET}/flights/t", options=service)
    out = open_store(target.target, service)
    output = FileOutput(url=out.url, rolling=RollingPolicy(every_checkpoint=True))
    root = open_store("memory://root-of-s3-lake")
    decision = FilesDecision(files_plan(root.url, output, PLAIN, schema=SCHEMA, table=target), root, out, SCHEMA, WORLD)
    for number in range(3):
        batch = pa.record_batch({"k": [number], "v": [f"b{number}"]}, schema=SCHEMA)
        for _ in range(2):
            made = [decision.stage([batch])]
            decision.commit(made, batch_id=number, offsets_digest=str(number), query_id="q")
    assert rows_of(target, service) == [(number, f"b{number}") for number in range(3)]


def test_two_drivers_on_s3(service):
    target = TableTarget(format="delta", target=f"s3://{BUCKET}/flights/u", mode="upsert", key=("k",), options=service)
    one, other = (open_table(target, schema=SCHEMA) for _ in range(2))

    def change(number, previous):
        rows = pa.table({"k": [number], "v": ["x"]}, schema=SCHEMA)
        token = TableToken(app="a", checkpoint_id=number, previous=previous)
        return TableChange(token=token, created_at=0.0, rows=lambda: iter([rows]))

    commit_once(one, change(0, None), WORLD)
    looks = one.look("a"), other.look("a")
    assert one.attempt(change(1, 0), looks[0]).outcome is Outcome.DONE
    assert other.attempt(change(1, 0), looks[1]).outcome is Outcome.NOT_DONE
    assert commit_once(other, change(1, 0), WORLD).committed == 1
    assert rows_of(target, service) == [(0, "x"), (1, "x")]
