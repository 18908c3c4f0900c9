"""Remakes crope/golden_losses.json. A change raises NUMERICS_VERSION: every older run is then stale."""

from __future__ import annotations

import json

from crope.config import GOLDEN_FILE, ROOT
from crope.golden import remake

if __name__ == "__main__":
    changed = remake()
    version = json.loads(GOLDEN_FILE.read_text(encoding="utf-8"))["numerics_version"]
    print(
        f"{GOLDEN_FILE.relative_to(ROOT)}: {'losses changed' if changed else 'unchanged'}, numerics_version {version}"
    )
