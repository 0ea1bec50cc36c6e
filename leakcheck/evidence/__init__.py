"""Exact statistics for rare events: `from leakcheck import evidence`, then `evidence.NAME`.

Pure functions of counts, flags and scores; the formula and its source stand in each docstring.
Everything counts in windows: answers of one window are not independent of each other.
"""

from leakcheck.evidence.arms import (
    DoseResponse,
    at_least,
    dose_response,
    fisher_one_sided,
    later,
    not_monotone,
    permutation_by_window,
    sign_one_sided,
)
from leakcheck.evidence.bounds import (
    CONFIDENCE,
    ECHO_CONFIDENCE,
    EXCLUSION_CONFIDENCE,
    entropy_needed,
    lower_bound,
    rate,
    running_lower_bound,
    upper_bound,
    windows_needed,
)
from leakcheck.evidence.clusters import LEAST_WINDOWS, ClusterRate, cluster_bootstrap
from leakcheck.evidence.combine import LARGEST, holm, merge, weighted
from leakcheck.evidence.directed import SOFT_BETS, STAND_OUT_BETS, directed_bets
from leakcheck.evidence.numerics import (
    FLOOR_BF16,
    FLOOR_FP16,
    FLOOR_FP32,
    floor_of,
    gap_threshold,
    quantum,
)
from leakcheck.evidence.phantoms import (
    PHANTOM_STAKES,
    phantom_bets,
    phantom_p,
    poisson_binomial_tail,
)
from leakcheck.evidence.sequential import (
    SIGN_RATES,
    certificate,
    certificate_mixture,
    cusum,
    likelihood_ratio,
    shiryaev_roberts,
    sign_e_value,
    sprt_mixture,
    windows_to_certify,
)

__all__ = [
    "CONFIDENCE",
    "ECHO_CONFIDENCE",
    "EXCLUSION_CONFIDENCE",
    "FLOOR_BF16",
    "FLOOR_FP16",
    "FLOOR_FP32",
    "LARGEST",
    "LEAST_WINDOWS",
    "PHANTOM_STAKES",
    "SIGN_RATES",
    "SOFT_BETS",
    "STAND_OUT_BETS",
    "ClusterRate",
    "DoseResponse",
    "at_least",
    "certificate",
    "certificate_mixture",
    "cluster_bootstrap",
    "cusum",
    "directed_bets",
    "dose_response",
    "entropy_needed",
    "fisher_one_sided",
    "floor_of",
    "gap_threshold",
    "holm",
    "later",
    "likelihood_ratio",
    "lower_bound",
    "merge",
    "not_monotone",
    "permutation_by_window",
    "phantom_bets",
    "phantom_p",
    "poisson_binomial_tail",
    "quantum",
    "rate",
    "running_lower_bound",
    "shiryaev_roberts",
    "sign_e_value",
    "sign_one_sided",
    "sprt_mixture",
    "upper_bound",
    "weighted",
    "windows_needed",
    "windows_to_certify",
]
