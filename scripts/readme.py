"""Makes the README's tables and picture anew from the committed records in results/published."""

from __future__ import annotations

from crope.cli import main_errors

if __name__ == "__main__":
    with main_errors():
        from crope.report.published import update_readme

        update_readme()
