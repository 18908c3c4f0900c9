"""Data: corpora.py reads and checks texts, fetch.py downloads missing ones, rows.py reads the
downloaded files; tokens.py makes token arrays, which batches.py and ngrams.py use.
"""
