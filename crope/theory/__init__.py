"""The papers' theory made runnable: what complex-linear maps are, the constructions of Sec. 4, RoFormer's identities.

`equations.py` says for every equation which code is it and which test holds it; `errata.py` says what does not hold.
"""
