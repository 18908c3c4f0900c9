"""Data: corpora.py (files, canonical form, checksums), fetch.py (downloads), rows.py (formats of
files), tokens.py (token arrays), ngrams.py (losses of n-gram models), batches.py.
"""
