"""The scenario of sections meets what it is there for: else its suites would prove nothing."""

from collections import Counter

from stateline.changelog.host_cache import HostCache
from stateline.changelog.segment_writer import SegmentWriter
from tests.kit.explore import Setting
from tests.kit.scenarios.sections import SectionedPipeline
from tests.kit.simulation import simulate


class Noted(SectionedPipeline):
    """Counts what records are made of."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def note(self, world, record):
        sections = list(record.sections())
        names = {section.name for section in sections if not section.is_inline}
        self.found["inline"] += any(section.is_inline for section in sections)
        self.found["packed or uploaded"] += bool(names)
        self.found["of several sections"] += any(
            len({section.offset for section in sections if section.name == name}) > 2 for name in names
        )
        for table in record.operators:
            for subtask in table.subtasks:
                covered = {(run.first_key_group, run.last_key_group) for run in subtask.runs}
                self.found["merged half way"] += len(covered) > 1


def test_records_have_inline_sections_segments_of_several_and_stacks_merged_half_way(monkeypatch):
    scenario = Noted()
    find, drop, finish = HostCache.find, HostCache.drop, SegmentWriter.finish

    def sought(self, *arguments, **more):
        found = list(find(self, *arguments, **more))
        scenario.found["read from a copy of a slice"] += any(copy.part is not None for copy in found)
        scenario.found["read from a copy" if found else "not on this host"] += 1
        yield from found

    def dropped(self, *arguments, **more):
        scenario.found["damaged copies"] += 1
        drop(self, *arguments, **more)

    def finished(self):
        placement = finish(self)
        scenario.found["several segments of a subtask"] += len(placement.names) > 1
        return placement

    monkeypatch.setattr(SegmentWriter, "finish", finished)
    monkeypatch.setattr(HostCache, "find", sought)
    monkeypatch.setattr(HostCache, "drop", dropped)
    assert not simulate(scenario, range(3), Setting()).failures
    assert {name for name, count in scenario.found.items() if count > 1} == {
        "inline",
        "packed or uploaded",
        "of several sections",
        "merged half way",
        "read from a copy",
        "read from a copy of a slice",
        "several segments of a subtask",
        "not on this host",
        "damaged copies",
    }
