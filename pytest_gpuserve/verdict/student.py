"""Tails of Student's t and of Fisher's F with real-valued degrees of freedom, and the quantile of t.

Both tails are the regularised incomplete beta function I_x(a, b) (Abramowitz and Stegun 26.5, 26.6.2, 26.7.1). Its
continued fraction (DLMF 8.17.22) is evaluated with Lentz's method. Everything stays in logarithms until the last step,
so that extreme tails keep their relative precision and do not overflow. A verdict has at most some hundred degrees of
freedom; of 100 000, nine digits are right.
"""

from __future__ import annotations

import math
from statistics import NormalDist

_LENTZ_TINY = 1e-300
_LENTZ_PRECISION = 1e-16
_LENTZ_MOST_STEPS = 100_000
_NEWTON_PRECISION = 1e-14
_NEWTON_MOST_STEPS = 100
_LOG_LARGEST_FLOAT = 709.0


def t_upper_tail(t: float, df: float) -> float:
    """Probability that Student's t with ``df`` degrees of freedom lies above ``t``.

    Args:
        t: The bound; plus or minus infinity is allowed.
        df: Degrees of freedom, any positive number.

    Raises:
        ValueError: ``t`` is NaN, or ``df`` is not a positive number.
    """
    _check_df(df)
    if math.isnan(t):
        raise ValueError("the tail of a NaN is not defined")
    if t < 0:
        return 1.0 - t_upper_tail(-t, df)
    if t == 0:
        return 0.5
    log_odds = math.log(df) - 2 * math.log(t)
    return 0.5 * _incomplete_beta(df / 2, 0.5, log_x=-_softplus(-log_odds), log_y=-_softplus(log_odds))


def t_quantile(upper_tail: float, df: float) -> float:
    """Quantile t above which a share ``upper_tail`` of Student's distribution lies: the inverse of `t_upper_tail`.

    Args:
        upper_tail: The share above, strictly between 0 and 1 (0.05 is the quantile that tables call t_.95).
        df: Degrees of freedom, any positive number.

    Returns:
        The quantile; infinity if it is larger than any float (a tiny share of a tiny ``df``).

    Raises:
        ValueError: ``upper_tail`` is not inside (0, 1), or ``df`` is not a positive number.
    """
    _check_df(df)
    if not 0.0 < upper_tail < 1.0:
        raise ValueError(f"a quantile needs a share between 0 and 1, not {upper_tail}")
    if upper_tail >= 0.5:
        return 0.0 if upper_tail == 0.5 else -t_quantile(1.0 - upper_tail, df)
    log_t = math.log(-NormalDist().inv_cdf(upper_tail))
    # Newton on log(tail) over log(t): a straight line where t is a power law, nearly one elsewhere.
    for _ in range(_NEWTON_MOST_STEPS):
        tail = t_upper_tail(math.exp(log_t), df)
        log_kernel = -(df + 1) / 2 * _softplus(2 * log_t - math.log(df))
        log_density = log_kernel - _log_beta(df / 2, 0.5) - 0.5 * math.log(df)
        step = math.log(tail / upper_tail) * tail / math.exp(log_t + log_density)
        log_t += step
        if log_t > _LOG_LARGEST_FLOAT:
            return math.inf
        if abs(step) < _NEWTON_PRECISION:
            break
    return math.exp(log_t)


def f_upper_tail(f: float, df1: float, df2: float) -> float:
    """Probability that Fisher's F with ``df1`` over ``df2`` degrees of freedom lies above ``f``.

    Args:
        f: The ratio of two mean squares, 0 or more; infinity is allowed.
        df1: Degrees of freedom of the numerator, a positive number.
        df2: Degrees of freedom of the denominator, a positive number.

    Raises:
        ValueError: ``f`` is negative or NaN, or degrees of freedom are not positive numbers.
    """
    _check_df(df1)
    _check_df(df2)
    if math.isnan(f) or f < 0:
        raise ValueError(f"a ratio of mean squares cannot be {f}")
    if f == 0:
        return 1.0
    log_odds = math.log(df2) - math.log(df1) - math.log(f)
    return _incomplete_beta(df2 / 2, df1 / 2, log_x=-_softplus(-log_odds), log_y=-_softplus(log_odds))


def _check_df(df: float) -> None:
    if not 0 < df < math.inf:
        raise ValueError(f"degrees of freedom must be a positive number, not {df}")


def _softplus(value: float) -> float:
    """log(1 + exp(value)) without overflow."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def _incomplete_beta(a: float, b: float, *, log_x: float, log_y: float) -> float:
    """I_x(a, b), with x and y = 1 - x as logarithms, because near 1 neither follows from the other."""
    log_front = a * log_x + b * log_y - _log_beta(a, b)
    x = math.exp(log_x)
    # The fraction converges fast here; the rest is its complement.
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_front) * _beta_fraction(a, b, x) / a
    return 1.0 - math.exp(log_front) * _beta_fraction(b, a, math.exp(log_y)) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b), by Lentz's method as modified by Thompson and Barnett."""
    c = 1.0
    d = 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _LENTZ_MOST_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for numerator in (even, odd):
            d = 1.0 / _not_zero(1.0 + numerator * d)
            c = _not_zero(1.0 + numerator / c)
            change = c * d
            value *= change
        if abs(change - 1.0) <= _LENTZ_PRECISION:
            return value
    raise ArithmeticError(f"the incomplete beta function did not converge at a={a}, b={b}, x={x}")


def _not_zero(value: float) -> float:
    return value if abs(value) > _LENTZ_TINY else _LENTZ_TINY


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
