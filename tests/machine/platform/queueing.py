"""Closed forms of queues, by which simulated ones are judged: latencies of requests that arrive at random moments.

Requests arrive as a Poisson process and are served in the order of arrival. M/M/c: c servers, service times are
exponential (Erlang 1917; Gross and Harris, "Fundamentals of Queueing Theory", section 2.3). M/D/1: one server, each
request takes equally long (Erlang 1909). A latency is the time from arrival to the end of service.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, factorial, floor

from minitrain.errors import UsageError, require_count


def waiting_probability(rate_per_s: float, service_s: float, num_servers: int) -> float:
    """Return the probability that a request of M/M/c has to wait (Erlang C), in [0, 1).

    Args:
        rate_per_s: arrivals a second.
        service_s: mean time of service, s.
        num_servers: c.

    Raises:
        UsageError: more arrives than can be served.
    """
    load = _load(rate_per_s, service_s, num_servers)
    all_busy = load**num_servers / factorial(num_servers) / (1 - load / num_servers)
    return all_busy / (sum(load**k / factorial(k) for k in range(num_servers)) + all_busy)


def mmc_latency_s(share: float, rate_per_s: float, service_s: float, num_servers: int) -> float:
    """Return the latency that a share of the requests of M/M/c do not exceed, s.

    Args:
        share: 0.95 is the 95th percentile.
        rate_per_s: arrivals a second.
        service_s: mean time of service, s.
        num_servers: c.

    Raises:
        UsageError: more arrives than can be served, or `share` is not in (0, 1).
    """
    load = _load(rate_per_s, service_s, num_servers)
    waiting = waiting_probability(rate_per_s, service_s, num_servers)
    spare = num_servers - 1 - load

    def served(time: float) -> float:
        services = time / service_s
        late = services if abs(spare) < 1e-9 else (1 - exp(-services * spare)) / spare
        return 1 - exp(-services) * (1 + waiting * late)

    return _percentile(share, served, service_s)


def md1_latency_s(share: float, rate_per_s: float, service_s: float) -> float:
    """Return the latency that a share of the requests of M/D/1 do not exceed, s; arguments as for `mmc_latency_s`.

    Its alternating sum loses digits where the queue is long: it is meant for loads up to about 0.9.
    """
    load = _load(rate_per_s, service_s, 1)

    def served(time: float) -> float:
        services = time / service_s - 1  # what is waited, in times of service
        terms = (load * (k - services) for k in range(floor(services) + 1))
        return (1 - load) * sum(term**k / factorial(k) * exp(-term) for k, term in enumerate(terms))

    return _percentile(share, served, service_s)


def _load(rate_per_s: float, service_s: float, num_servers: int) -> float:
    """Return how many servers are busy on average."""
    load = rate_per_s * service_s
    if not 0 < load < require_count("num_servers", num_servers):
        raise UsageError(
            f"the load, {rate_per_s:g} arrivals/s of {service_s:g} s, must be above 0 and below {num_servers} servers; "
            "lower the rate, or add servers"
        )
    return load


def _percentile(share: float, served: Callable[[float], float], service_s: float) -> float:
    """Return when a share has been served, by bisection of a function that rises with the time."""
    if not 0 < share < 1:
        raise UsageError(f"share must be in (0, 1), got {share!r}; 0.95 is the 95th percentile")
    low, high = 0.0, service_s
    while served(high) < share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if served(middle) < share else (low, middle)
    return high
