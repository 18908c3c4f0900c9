"""Runs: from a configuration to a record, and from studies to many of them."""
