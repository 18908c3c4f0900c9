"""Remakes crope/golden_losses.json. A change raises NUMERICS_VERSION: every older run is then stale."""

from __future__ import annotations

from crope.config import GOLDEN_FILE, ROOT
from crope.golden import remake

if __name__ == "__main__":
    changed = remake()
    name = GOLDEN_FILE.relative_to(ROOT)
    print(f"{name}: {'losses changed, numerics_version raised' if changed else 'unchanged'}")
