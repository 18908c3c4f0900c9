"""The models: one decoder, in which `position`, `projection` and `attention` select one class each."""
