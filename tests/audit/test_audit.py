"""The audit says what it knows, and never that nothing is known when nobody was asked."""

from __future__ import annotations

import pytest

from tests.audit.__main__ import ask, judge

SOUND = {"name": "good", "version": "1", "vulns": []}
BAD = {"name": "bad", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "own", "skip_reason": "not found on PyPI"}


@pytest.mark.parametrize(
    ("packages", "status", "strict", "said"),
    [
        ([SOUND], 0, 0, ["audited: 1 packages, no vulnerability is known"]),
        ([SOUND, BAD], 1, 1, ["bad 2: CVE-1, mended in 3", "audited: 2 packages, see above"]),
        ([SKIPPED, SKIPPED], 0, 1, ["NOT AUDITED: 2 of 2 packages: index unreachable, or it is not PyPI"]),
        ([], 0, 1, ["NOT AUDITED: 0 of 0 packages: index unreachable, or it is not PyPI"]),
        ([BAD, SKIPPED], 1, 1, ["NOT AUDITED: 1 of 2 packages: the index does not know own"]),
    ],
)
def test_a_known_vulnerability_fails_and_silence_is_told(packages, status, strict, said):
    assert judge(packages, strict=False)[0] == status
    assert judge(packages, strict=True) == (strict, judge(packages, strict=False)[1])
    assert set(said) <= set(judge(packages, strict=False)[1])


def test_no_report_is_no_silence(tmp_path):
    with pytest.raises(RuntimeError):
        ask(tmp_path / "missing.txt")
