"""Every name of upstream is here with parameters that fit, or has a reason."""

from tools.steplib import upstream
from tools.steplib.book import PACKAGE, ROOT, Book
from tools.steplib.interface import compare, problems
from tools.steplib.package import Package


def test_interface_is_upstreams_or_has_a_reason():
    found = compare(upstream.modules(), Package(ROOT / PACKAGE))
    lines = problems(found, upstream.reasons(), newest=Book.load().last)
    assert not lines, "\n".join(["see tools/upstream_reasons.toml:", *lines])
