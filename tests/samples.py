"""What Prometheus reads at /metrics, as numbers by name."""

from prometheus_client.parser import text_string_to_metric_families

FIRST_COUNT = "minisgl_time_to_first_token_seconds_count"
BETWEEN_COUNT = "minisgl_inter_token_latency_seconds_count"

Numbers = dict[str, float]


def read(text: str) -> Numbers:
    """Every sample by its name and labels, as ``name{le=0.5}``."""
    found: Numbers = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = (
                sample.value
            )
    return found


def ends(found: Numbers) -> dict[str, float]:
    """Answers by how they ended."""
    name = "minisgl_requests_total{reason="
    return {
        key.removeprefix(name).rstrip("}"): value
        for key, value in found.items()
        if key.startswith(name)
    }
