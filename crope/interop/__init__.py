"""CRoPE and other software: layers in a model that exists, and this project's models elsewhere."""
