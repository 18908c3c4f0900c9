"""CRoPE and other software: adapt.py, export.py, generate.py."""
