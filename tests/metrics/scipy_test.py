"""Our statistics beside SciPy's, on the same numbers: scipy_test.py PRINT_STATISTICS"""

import json
import math
import subprocess
import sys

try:
    import numpy
    from scipy import stats
except ImportError as error:
    sys.exit(f"{error}: run scripts/setup")


def close(found, expected, what):
    if not math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12):
        sys.exit(f"{what}: expected {expected!r}, found {found!r}")


def check(found, expected, interval, what):
    close(found["p"], expected.pvalue, what + " p")
    close(found["low"], interval.low, what + " low")
    close(found["high"], interval.high, what + " high")


output = json.loads(subprocess.run([sys.argv[1]], check=True, capture_output=True).stdout)
checked = 0
for case in output["paired"]:
    result = stats.ttest_rel(case["b"], case["a"])
    check(case["found"], result, result.confidence_interval(0.95), "paired")
    close(case["found"]["mean"], numpy.mean(case["b"]) - numpy.mean(case["a"]), "paired mean")
    checked += 1
for case in output["welch"]:
    result = stats.ttest_ind(case["b"], case["a"], equal_var=False)
    check(case["found"], result, result.confidence_interval(0.95), "welch")
    checked += 1
for case in output["means"]:
    values = case["values"]
    low, high = stats.t.interval(0.95, len(values) - 1, numpy.mean(values), stats.sem(values))
    close(case["low"], low, "mean low")
    close(case["high"], high, "mean high")
    checked += 1
for case in output["mcnemar"]:
    only_a = sum(a == 1 and b == 0 for a, b in zip(case["a"], case["b"]))
    only_b = sum(a == 0 and b == 1 for a, b in zip(case["a"], case["b"]))
    # McNemar's exact test is a test of a coin on the samples that only one of them got right.
    expected = stats.binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1
    close(case["found"]["p"], expected, "mcnemar p")
    # Bonett and Price (2012), equation for the adjusted Wald interval.
    n = len(case["a"])
    p12, p21 = (only_b + 1) / (n + 2), (only_a + 1) / (n + 2)
    reach = stats.norm.ppf(0.975) * math.sqrt((p12 + p21 - (p12 - p21) ** 2) / (n + 2))
    low, high = max(-1, p12 - p21 - reach), min(1, p12 - p21 + reach)
    if expected >= 0.05:  # what the test does not leave out, the interval holds
        low, high = min(low, 0), max(high, 0)
    close(case["found"]["low"], low, "mcnemar low")
    close(case["found"]["high"], high, "mcnemar high")
    checked += 1
for degrees, share, found in output["quantiles"]:
    close(found, stats.t.ppf(share, degrees), f"quantile {share} of {degrees}")
    checked += 1


def roots(a, b, axis=-1):
    """The difference of root mean squares, and its standard error by the delta method."""
    n = a.shape[axis]
    root_a, root_b = (numpy.sqrt(numpy.mean(x**2, axis=axis, keepdims=True)) for x in (a, b))
    influence = (b**2 - root_b**2) / (2 * root_b) - (a**2 - root_a**2) / (2 * root_a)
    error = numpy.std(influence, axis=axis, ddof=1) / math.sqrt(n)
    return (root_b - root_a).squeeze(axis), error


def distance(a, b, axis=-1):
    difference, error = roots(a, b, axis)
    return difference / error


for case in output["roots"]:
    a, b, found = numpy.array(case["a"]), numpy.array(case["b"]), case["found"]
    difference, error = roots(a, b)
    close(found["mean"], difference, "root mean")
    # Swapped pairs; of 8 samples SciPy goes through all 256 ways.
    result = stats.permutation_test((a, b), distance, permutation_type="samples", vectorized=True,
                                    n_resamples=case["rounds"], alternative="two-sided",
                                    rng=numpy.random.default_rng(1))
    # Five standard deviations of the difference of two shares of this many.
    allowed = 5 * math.sqrt(2 * 0.25 / case["rounds"])
    if abs(found["p"] - result.pvalue) > allowed:
        sys.exit(f"root p: expected {result.pvalue} +- {allowed}, found {found['p']}")
    # The ends are so many errors away that 5 % of the distances are larger. That share, counted
    # among SciPy's distances, varies as those of two sets of this many; of 256 ways, which come in
    # pairs, one pair may lie on the edge.
    reach = (found["high"] - found["mean"]) / error
    close((found["mean"] - found["low"]) / error, reach, "root interval")
    null = numpy.abs(result.null_distribution)
    larger, at_least = (null > reach * (1 + 1e-6)).mean(), (null > reach * (1 - 1e-6)).mean()
    allowed = 5 * math.sqrt(2 * 0.05 * 0.95 / case["rounds"])
    if not larger - allowed <= 0.05 <= at_least + allowed:
        sys.exit(f"root interval: {larger} to {at_least} of SciPy's distances are beyond it")
    # A bootstrap comes to the same where there are many samples: BCa's ends
    # vary by so many errors with this many resamples (five of sqrt(0.025 * 0.975 / 10000) / 0.058 = 0.027 are 0.13),
    # and differ from symmetric ones by the skewness, of the order of 1 / sqrt(400).
    if len(a) >= 400:
        by_bootstrap = stats.bootstrap((a, b), lambda a, b, axis=-1: roots(a, b, axis)[0],
                                       paired=True, vectorized=True, method="BCa",
                                       n_resamples=10000, rng=numpy.random.default_rng(2))
        for end in ("low", "high"):
            expected = getattr(by_bootstrap.confidence_interval, end)
            if abs(found[end] - expected) > (0.13 + 4 / math.sqrt(len(a))) * error:
                sys.exit(f"root interval, {end}: {expected} by a bootstrap, found {found[end]}")
    checked += 1
print(f"{checked} results agree with SciPy")
