"""Balancing: weights on observed rows under which they resemble a population. No recommender is needed.

Read in this order: `solver` (the problem and its result), `exponential_family`, `newton`, `penalties` and `box_qp` (how
it is solved), `kernels`, `population`, `functions` and `selection` (what is balanced), `features` (pairs of a log),
`estimators` (two samples), `covariate_balance` and `diagnostics` (how good weights are), `theory` (Theorem 2).
"""
