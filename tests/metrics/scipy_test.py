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
    close(case["found"]["low"], max(-1, p12 - p21 - reach), "mcnemar low")
    close(case["found"]["high"], min(1, p12 - p21 + reach), "mcnemar high")
    checked += 1
for degrees, share, found in output["quantiles"]:
    close(found, stats.t.ppf(share, degrees), f"quantile {share} of {degrees}")
    checked += 1
print(f"{checked} results agree with SciPy")
