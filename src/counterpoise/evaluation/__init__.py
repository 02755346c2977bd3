"""How good a model is. Read in this order.

`metrics` (ranking metrics and errors of rows), `evaluate` (all of them on a test log, with bootstrap intervals),
`calibration` (predicted against observed rates), `estimates` (the debiased risk of held-out rows of a biased log, when
there is no unbiased test to look at).
"""
