"""The papers' theory in code: complex-linear maps, the constructions of Sec. 4, RoFormer's
identities.

docs/equations.md lists code and test of every equation, and the errata.
"""
