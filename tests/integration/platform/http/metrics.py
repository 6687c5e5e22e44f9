"""What the gateway of a running platform counts."""

import httpx

from tests.integration.platform.running_platform import Platform


def metric(platform: Platform, start: str) -> float:
    """The value of the one sample that begins so; 0 if there is none yet."""
    headers = {"authorization": f"Bearer {platform.service_token}"}
    with httpx.Client(trust_env=False, timeout=60) as client:
        text = client.get(f"http://{platform.announced('gateway')['http']}/metrics", headers=headers).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(start))
