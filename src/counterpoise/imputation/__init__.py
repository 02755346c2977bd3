"""Imputations: the error of pairs that were not observed.

Read in this order: `base` (none, a constant label, a learned one), `outcome` (a model trained before), `calibrated`
(DCE), `filtered` (CDR), `targeted` (TDR), `multiply_robust` (MR), `tri_training` (ASIPS), `mnar` (the likelihood of
labels and missingness), `clicks` (a click model); and two that learn from the rows of a probe: `causal_embeddings`
(CausE), `distillation` (a teacher's labels).
"""
