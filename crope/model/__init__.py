"""The models: one decoder; `position`, `projection` and `attention` select one class each."""
