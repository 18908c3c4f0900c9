"""The models: one decoder, three choices."""
