"""How often to save, against the figures that Daly gives and that follow from his model."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.training import optimal_interval, waste

MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(
    ("mtbf", "young", "daly", "exact"),
    [(24 * HOUR, 120.00, 116.69, 116.69), (6 * HOUR, 60.00, 56.71, 56.71), (15 * MINUTE, 12.25, 9.14, 9.17)],
)
def test_daly_s_own_examples(mtbf, young, daly, exact):
    for model, minutes in (("young", young), ("daly", daly), ("exact", exact)):
        found = optimal_interval(5 * MINUTE, mtbf, restart_seconds=10 * MINUTE, model=model)
        assert found.seconds / MINUTE == pytest.approx(minutes, abs=0.005)


def test_more_figures():
    found = optimal_interval(30, 86400, restart_seconds=300)
    assert found.seconds == pytest.approx(2256.88, abs=0.01)
    assert found.waste == pytest.approx(0.0295, abs=5e-5)
    assert optimal_interval(30, 86400, model="young").seconds == pytest.approx(2276.84, abs=0.01)
    for seconds, part in ((300, 0.0958), (1800, 0.0302), (7200, 0.0485)):
        assert waste(seconds, 30, 86400, restart_seconds=300) == pytest.approx(part, abs=6e-5)
    llama = optimal_interval(60, 11135, restart_seconds=600, model="daly")
    assert (llama.seconds, llama.waste) == (pytest.approx(1116, abs=1), pytest.approx(0.147, abs=5e-4))


@given(st.floats(1, 1000), st.floats(2000, 1e7), st.floats(0.2, 5))
def test_no_other_interval_wastes_less(save, mtbf, factor):
    found = optimal_interval(save, mtbf)
    assert found.waste <= waste(found.seconds * factor, save, mtbf) + 1e-12


def test_steps_nodes_and_what_is_durable_late():
    found = optimal_interval(30, 128 * 86400, nodes=128, step_seconds=0.8)
    assert found.steps == int(2256.88 / 0.8)
    assert found.seconds == pytest.approx(found.steps * 0.8)
    late = optimal_interval(2, 86400, persist_seconds=900)
    assert (late.seconds, len(late.notes)) == (900, 1)
    assert "a tenth of the time between failures" in optimal_interval(100, 500).notes[0]
    assert waste(1e9, 1, 1) == 1.0


@pytest.mark.parametrize("times", [(0, 1), (1, 0), (-1, 1), (math.nan, 1), (1, math.inf)])
def test_times_that_make_no_sense(times):
    with pytest.raises(ValueError, match="finite and not negative"):
        optimal_interval(*times)
    with pytest.raises(ValueError, match="some time"):
        waste(0, 1, 1)
