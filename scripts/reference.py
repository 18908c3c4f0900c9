"""Makes docs/config.md anew from the schema."""

from __future__ import annotations

from crope.cli import main_errors

if __name__ == "__main__":
    with main_errors():
        from crope.reference import FILE, update_reference

        update_reference()
        print(FILE)
