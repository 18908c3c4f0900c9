"""Data: tokens.py makes token arrays of the texts that corpora.py reads and checks; missing ones are
downloaded by fetch.py, whose files rows.py reads. Of token arrays: batches.py, ngrams.py.
"""
