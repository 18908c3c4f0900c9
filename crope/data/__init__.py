"""Data: corpora.py (files, canonical form, checksums), fetch.py (downloads), tokens.py (token
arrays), batches.py.
"""
