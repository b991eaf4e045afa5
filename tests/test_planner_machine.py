"""The planner keeps its promises in worlds that Hypothesis makes up; `make soak` makes up many more of them."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from planner_machine import Ending, Operators, Traffic

# A failure is made as short as it can be, which may take minutes.
pytestmark = pytest.mark.timeout(600)

often = settings(
    max_examples=500,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


class TestTraffic(Traffic.TestCase):
    settings = settings(often, max_examples=250)


class TestOperators(Operators.TestCase):
    settings = often


class TestEnding(Ending.TestCase):
    settings = settings(often, max_examples=150)


@pytest.mark.soak
class TestMuchTraffic(Traffic.TestCase):
    settings = settings(often, max_examples=5000)


@pytest.mark.soak
class TestManyOperators(Operators.TestCase):
    settings = settings(often, max_examples=10_000)


@pytest.mark.soak
class TestManyEndings(Ending.TestCase):
    settings = settings(often, max_examples=1500)
