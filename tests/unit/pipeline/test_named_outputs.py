"""Open files are finished only in places that the caller named, whatever a record says."""

from __future__ import annotations

import pytest

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, OutputState
from stateline.environment import system_environment
from stateline.errors import InvalidInputError
from stateline.files import FileOutput
from stateline.pipeline.end_of_stream import finish_root
from tests.unit.checkpoint.checkpoint_kit import checkpoint


def finished(root, **more):
    return finish_root(
        str(root), {}, FileOutput(url=str(root)), system_environment(), retained_checkpoints=9, elsewhere=True, **more
    )


def test_a_record_that_names_an_output_elsewhere_is_refused_unless_the_caller_names_it(tmp_path):
    root, elsewhere = tmp_path / "place/state", tmp_path / "elsewhere/out"
    output = OutputState(operator="flights", url=open_store(elsewhere).url, finished=(), open=())
    CheckpointStore(open_store(root)).publish(checkpoint(0, outputs=(output,), operators=()))
    with pytest.raises(InvalidInputError, match=r"finish_files .*elsewhere/out.*outputs=\['file://"):
        finished(root)
    with pytest.raises(InvalidInputError, match="names this output"):
        finished(root, named=[str(tmp_path / "else")])
    assert not elsewhere.exists()
    assert finished(root, named=[str(tmp_path / "elsewhere")])


def test_an_output_beside_the_root_needs_no_name(tmp_path):
    output = OutputState(operator="flights", url=open_store(tmp_path / "out").url, finished=(), open=())
    CheckpointStore(open_store(tmp_path / "state")).publish(checkpoint(0, outputs=(output,), operators=()))
    assert finished(tmp_path / "state")
