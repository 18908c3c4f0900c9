"""CRoPE in models of other projects, and this project's models in other software."""
