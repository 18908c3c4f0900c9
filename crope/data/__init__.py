"""The data stage, in the order of its work: corpora.py (which text, and its canonical form), hub.py, preflight.py,
loaders.py and client.py (fetching it), tokenizer.py, token_files.py (ids on disk), tokens.py (the entry), batches.py
(training windows)."""
