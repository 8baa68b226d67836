"""The models of tables keep what real tables promise: else a simulation of them would prove nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pyarrow as pa
import pytest

from stateline.blob import BlobStore, open_store
from stateline.environment import system_environment
from stateline.tables import NewFile, TableTarget
from tests.kit.scenarios.tables import TABLE_KINDS, table_of
from tests.kit.table_models import TableModel
from tests.unit.tables import test_table_protocol as protocol
from tests.unit.tables.table_kit import SCHEMA, Place


@dataclasses.dataclass
class ModelPlace(Place):
    """A model in memory."""

    kind: str = ""

    def target(self) -> TableTarget:
        target = TABLE_KINDS[self.kind].target
        return dataclasses.replace(target, key=("k",)) if target.key else target

    def store(self) -> BlobStore:
        return open_store(f"memory://{self.folder}")

    def open(self, schema: pa.Schema | None = SCHEMA) -> TableModel:
        kind = dataclasses.replace(TABLE_KINDS[self.kind], target=self.target())
        return table_of(kind, self.store(), self.store(), self.store(), system_environment(), schema)

    def rows(self):
        return sorted(self.open().rows())

    def append_foreign(self, k: int) -> None:
        self.open().append_foreign((k, "foreign"))

    def drop(self) -> None:
        self.store().delete([info.name for info in self.store().list("version-")])

    def compact(self) -> None:
        self.open().compact()

    def publish(self, rows: pa.Table) -> tuple[NewFile, ...]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        name, data = f"part-{next(self.names)}.arrow", sink.getvalue().to_pybytes()
        self.store().put_if_absent(name, data)
        return (NewFile(name=name, length=len(data), rows=rows.num_rows),)


@pytest.mark.parametrize("promise", protocol.PROMISES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", sorted(TABLE_KINDS))
def test_a_model_keeps_what_every_table_promises(promise: Callable[[Place], None], kind, tmp_path):
    promise(ModelPlace(tmp_path, kind=kind))
