"""Options as Spark hands them over."""

from __future__ import annotations

import pytest

from stateline.errors import InvalidInputError
from stateline.spark.data_source_options import DataSourceOptions
from stateline.spark.sinks.files_options import FilesSinkOptions
from stateline.spark.sources.state_options import StateSourceOptions

OPTIONS = [StateSourceOptions, FilesSinkOptions]


@pytest.mark.parametrize("kind", OPTIONS)
def test_an_option_in_two_spellings_is_refused(kind: type[DataSourceOptions]) -> None:
    with pytest.raises(InvalidInputError, match="got it in two spellings"):
        kind.from_spark({"path": "/tmp/x", "Path": "/tmp/y"})


@pytest.mark.parametrize("kind", OPTIONS)
def test_an_unknown_option_is_refused(kind: type[DataSourceOptions]) -> None:
    with pytest.raises(InvalidInputError, match="Did you mean 'path'"):
        kind.from_spark({"paht": "/tmp/x"})


def test_a_name_in_either_way_and_the_options_of_stores() -> None:
    source = StateSourceOptions.from_spark({"path": "/tmp/x", "startcheckpoint": "3", "mode": "changes"})
    assert source.start_checkpoint == 3
    sink = FilesSinkOptions.from_spark({"path": "/tmp/x", "partition_by": "a, b", "ROOT.Key": "1", "store.k.l": "2"})
    assert (sink.partition_by, sink.root_options, sink.store_options) == (("a", "b"), {"Key": "1"}, {"k.l": "2"})
