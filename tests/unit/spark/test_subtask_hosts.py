"""Which host a subtask belongs to, and which number Spark sends to its partition."""

from __future__ import annotations

from collections import Counter

import pytest

from stateline.spark.job.anchor import hosts_of_subtasks, values_of_partitions

HOSTS = {"a": 1, "b": 1, "c": 1, "d": 1}
NOWHERE = [""] * 8


def test_subtasks_begin_spread_over_all_hosts_and_always_at_the_same_ones():
    hosts = hosts_of_subtasks("query", NOWHERE, HOSTS)
    assert Counter(hosts) == dict.fromkeys(HOSTS, 2)
    assert hosts == hosts_of_subtasks("query", NOWHERE, dict(reversed(HOSTS.items())))


def test_queries_with_few_subtasks_do_not_all_begin_at_the_same_host():
    assert len({hosts_of_subtasks(f"query {number}", [""], HOSTS)[0] for number in range(50)}) == 4


def test_subtasks_of_a_lost_host_move_and_no_others_do():
    before = hosts_of_subtasks("query", NOWHERE, HOSTS)
    left = {host: 1 for host in HOSTS if host != "c"}
    after = hosts_of_subtasks("query", before, left)
    assert [new for new, old in zip(after, before, strict=True) if old != "c"] == [
        host for host in before if host != "c"
    ]
    assert sorted(Counter(after).values()) == [2, 3, 3]
    assert hosts_of_subtasks("query", after, left) == after


def test_a_new_host_gets_its_share_and_no_more_subtasks_move_than_that_takes():
    before = hosts_of_subtasks("query", NOWHERE, {"a": 1, "b": 1})
    after = hosts_of_subtasks("query", before, HOSTS)
    assert Counter(after) == dict.fromkeys(HOSTS, 2)
    assert sum(new != old for new, old in zip(after, before, strict=True)) == 4


def test_a_host_that_cannot_make_it_shorter_for_the_others_gets_nothing():
    before = hosts_of_subtasks("query", NOWHERE, HOSTS)
    assert hosts_of_subtasks("query", before, {**HOSTS, "e": 1}) == before


def test_hosts_have_subtasks_as_they_have_executors():
    assert Counter(hosts_of_subtasks("query", NOWHERE, {"a": 3, "b": 1})) == {"a": 6, "b": 2}


def test_subtasks_stay_where_they_were_while_there_are_no_executors():
    assert hosts_of_subtasks("query", ["a", "b"], {}) == ["a", "b"]


def test_the_numbers_are_those_that_sparks_hash_sends_to_each_partition():
    """``SELECT min(id) FROM range(1000) GROUP BY pmod(hash(CAST(id AS INT)), 8)``, as Spark 4 answers."""
    assert values_of_partitions(8) == [12, 6, 5, 1, 25, 15, 2, 0]


@pytest.mark.parametrize("partitions", [1, 2, 1000])
def test_every_partition_has_a_number_of_its_own(partitions):
    assert len(set(values_of_partitions(partitions))) == partitions
