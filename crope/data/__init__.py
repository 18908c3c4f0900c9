"""Data: corpora.py (files, canonical form, checksums), fetch.py (downloads), rows.py (file formats),
tokens.py (token arrays), ngrams.py (losses of n-gram models), batches.py.
"""
