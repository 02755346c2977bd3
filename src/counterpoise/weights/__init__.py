"""Weights: how much each observed pair counts.

Read in this order: `base` (equal weights, naive Bayes, inverse propensities), `propensity` (estimated or known
propensities), `calibration` and `capping` (transforms of others), `joint` (propensities learned beside the predictor),
`balancing` (the paper's weights, solved exactly), `gradient` (the paper's Algorithm 1), `auto_debias` (learned on the
rows of a probe by a look-ahead step).
"""
