"""Every claim in its short form: a second or so each, with fixed seeds."""

import pytest

from quality import claims
from quality.values import Effort

SEED = 7


@pytest.mark.parametrize("name", [claims.name_of(each) for each in claims.SIMULATED])
def test_a_claim_holds_within_its_standard_error(name):
    result = claims.try_one(name, Effort(), SEED)
    assert result.holds is not False, result
    assert result.holds is None or result.standard_error is not None
